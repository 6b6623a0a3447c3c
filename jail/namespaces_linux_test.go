package jail

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

func TestCheckSwitches(t *testing.T) {
	const profile = "/nix/store/8a7l0n5gfc1k2mzs9xbw4rqdvyhj3ip6-nix-sandbox-0a1b2c3d"
	for name, test := range map[string]struct {
		switches map[string]string
		root     bool
		works    bool
		profile  string
		want     string // in the refusal; empty if there is none
		hint     string
	}{
		"none of them":          {},
		"all open":              {switches: map[string]string{sysctlMax: "15000", sysctlDebian: "1", sysctlAppArmor: "0"}},
		"no number left":        {switches: map[string]string{sysctlMax: "0"}, works: true, want: "user.max_user_namespaces is 0", hint: "sysctl -w user.max_user_namespaces=15000"},
		"no number, for root":   {switches: map[string]string{sysctlMax: "0"}, root: true, works: true, want: "user.max_user_namespaces is 0", hint: "sysctl -w user."},
		"Debian's":              {switches: map[string]string{sysctlDebian: "0"}, works: true, want: "kernel.unprivileged_userns_clone is 0", hint: "sysctl -w kernel.unprivileged_userns_clone=1"},
		"Debian's, for root":    {switches: map[string]string{sysctlDebian: "0"}, root: true},
		"AppArmor's":            {switches: map[string]string{sysctlAppArmor: "1"}, want: "kernel.apparmor_restrict_unprivileged_userns is 1", hint: "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
		"AppArmor's, a file":    {switches: map[string]string{sysctlAppArmor: "1"}, profile: profile, want: "kernel.apparmor_restrict_unprivileged_userns is 1", hint: "sudo install -m 644 " + profile + " /etc/apparmor.d/nix-sandbox-0a1b2c3d && sudo apparmor_parser --replace /etc/apparmor.d/nix-sandbox-0a1b2c3d"},
		"AppArmor's, a profile": {switches: map[string]string{sysctlAppArmor: "1"}, works: true},
		"AppArmor's, for root":  {switches: map[string]string{sysctlAppArmor: "1"}, root: true},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			for name, value := range test.switches {
				file := filepath.Join(folder, name)
				must.Do(t, os.MkdirAll(filepath.Dir(file), 0o700))
				must.Do(t, os.WriteFile(file, []byte(value+"\n"), 0o600))
			}
			err := (&Spec{AppArmor: test.profile}).checkSysctls(folder, test.root, func() bool { return test.works })
			switch {
			case test.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v, want one with %q", err, test.want)
			case test.want != "" && !strings.Contains(HintOf(err), test.hint):
				t.Errorf("hint %q, want %q", HintOf(err), test.hint)
			}
		})
	}
}

func TestNamespacesWork(t *testing.T) {
	if output, works := try(t.Context(), 0, "/does/not/exist", smallest...); works || output == "" {
		t.Error("a program that does not exist works")
	}
}

// A check that is given up ends with all that it started, also where that
// still waits for its parent, as bubblewrap's child may.
func TestNamespacesWorkGivesUp(t *testing.T) {
	folder := t.TempDir()
	program, note := filepath.Join(folder, "bubblewrap"), filepath.Join(folder, "child")
	script := "#!/bin/sh\nsleep 600 &\necho $! >" + note + ".part\nmv " + note + ".part " + note + "\nwait\n"
	must.Do(t, os.WriteFile(program, []byte(script), 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan bool, 1)
	go func() {
		_, works := try(ctx, 0, program, smallest...)
		ended <- works
	}()
	var child int
	patience.Until(t, "the program starts its child", func() bool {
		text, err := os.ReadFile(note)
		child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	defer unix.Kill(child, unix.SIGKILL)
	cancel()
	select {
	case works := <-ended:
		if works {
			t.Error("what was given up works")
		}
	case <-time.After(patience.Long):
		t.Fatal("it is still waited for")
	}
	patience.Gone(t, child)
}

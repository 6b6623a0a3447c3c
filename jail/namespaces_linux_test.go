package jail

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckSwitches(t *testing.T) {
	for name, test := range map[string]struct {
		switches map[string]string
		root     bool
		works    bool
		want     string // in the refusal; empty if there is none
	}{
		"none of them":          {nil, false, false, ""},
		"all open":              {map[string]string{switchMax: "15000", switchDebian: "1", switchAppArmor: "0"}, false, false, ""},
		"no number left":        {map[string]string{switchMax: "0"}, false, true, "user.max_user_namespaces is 0"},
		"no number, for root":   {map[string]string{switchMax: "0"}, true, true, "user.max_user_namespaces is 0"},
		"Debian's":              {map[string]string{switchDebian: "0"}, false, true, "kernel.unprivileged_userns_clone is 0"},
		"Debian's, for root":    {map[string]string{switchDebian: "0"}, true, false, ""},
		"AppArmor's":            {map[string]string{switchAppArmor: "1"}, false, false, "kernel.apparmor_restrict_unprivileged_userns is 1"},
		"AppArmor's, a profile": {map[string]string{switchAppArmor: "1"}, false, true, ""},
		"AppArmor's, for root":  {map[string]string{switchAppArmor: "1"}, true, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			for name, value := range test.switches {
				file := filepath.Join(folder, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := checkSwitches(folder, test.root, func() bool { return test.works })
			switch {
			case test.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v, want one with %q", err, test.want)
			case test.want != "" && !strings.Contains(HintOf(err), "sysctl -w "):
				t.Errorf("hint %q, want the command that mends it", HintOf(err))
			}
		})
	}
}

func TestNamespacesWork(t *testing.T) {
	if said, works := namespacesWork(t.Context(), "/does/not/exist", 0); works || said == "" {
		t.Error("a program that does not exist works")
	}
}

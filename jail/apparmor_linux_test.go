package jail_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// restricted reports whether AppArmor forbids user namespaces here to programs without a profile, and has those of
// the artifacts (tests/vm/suite).
func restricted() bool { return os.Getenv("NIX_SANDBOX_TEST_MACHINE") == "restricted" }

// With its profile, the launcher starts sandboxes where other programs make no user namespace.
func TestRestricted_StartsSandboxes(t *testing.T) {
	if !restricted() {
		t.Skip("AppArmor forbids no user namespaces here: see tests/vm/README.md")
	}
	run, spec := artifact(t)
	alone := exec.Command(spec.Bubblewrap, "--unshare-user", "--ro-bind", "/", "/", "--", spec.Bubblewrap, "--version")
	if out, err := alone.CombinedOutput(); err == nil || !strings.Contains(string(out), "Permission denied") {
		t.Errorf("bubblewrap alone: %v, %s", err, out)
	}
	if out := must.Get(exec.Command(filepath.Join(filepath.Dir(run), "check")).Output())(t); bytes.Contains(out, []byte(`"ok":false,"needed":true`)) {
		t.Errorf("bin/check: %s", out)
	}
	want := filepath.Base(spec.AppArmor)[33:]
	want = want + "//&" + want + "-code (enforce)\n"
	if got := runIn(t, "cat /proc/self/attr/current"); got.out != want {
		t.Errorf("code has the profile %q, want %q: %s", got.out, want, got.err)
	}
}

// A user who writes a description of one's own, with the launcher's profile, gets no capability for a program. In
// machines without AppArmor, the same description gives it one.
func TestRestricted_KeepsCapabilitiesToItself(t *testing.T) {
	run, spec := artifact(t)
	folder := t.TempDir()
	// One instruction: allow.
	spec.Seccomp = filepath.Join(folder, "filter")
	must.Do(t, os.WriteFile(spec.Seccomp, []byte{6, 0, 0, 0, 0, 0, 0xff, 0x7f}, 0o600))
	spec.Flags = append(spec.Flags, "--cap-add", "ALL")
	own := filepath.Join(folder, "run")
	first, _, _ := bytes.Cut(must.Get(os.ReadFile(run))(t), []byte("\n"))
	must.Do(t, os.WriteFile(own, append(append(first, '\n'), must.Get(json.Marshal(spec))(t)...), 0o700))
	got := runProgram(t, exec.Command(own), "chroot / true && echo entered")
	if want := restricted(); want == (got.out == "entered\n") {
		t.Errorf("restricted: %v, status %d: %s%s", want, got.status, got.out, got.err)
	}
}

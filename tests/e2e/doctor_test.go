package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// finding is a line of doctor's.
type finding struct {
	Name, Found, Fix string
	OK, Needed       bool
}

// doctor examines this machine, and returns what was found by name, and the
// exit status.
func doctor(t *testing.T, variables ...string) (map[string]finding, int) {
	t.Helper()
	found := map[string]finding{}
	all, status := examine(t, variables...)
	for _, f := range all {
		found[f.Name] = f
	}
	return found, status
}

// examine is doctor with all that was found, in its order: of several needs of
// one name, those of different artifacts.
func examine(t *testing.T, variables ...string) ([]finding, int) {
	t.Helper()
	cmd := command(t, variables...)
	cmd.Args = []string{cmd.Args[0], "doctor", "--json"}
	out, _ := cmd.Output()
	var report struct {
		OK       bool
		Findings []finding
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	status := cmd.ProcessState.ExitCode()
	if report.OK != (status == 0) {
		t.Errorf("ok is %v, the exit status %d", report.OK, status)
	}
	for _, f := range report.Findings {
		if f.OK != (f.Fix == "") {
			t.Errorf("%+v", f)
		}
	}
	return report.Findings, status
}

// On a machine on which these tests pass, sandboxes work.
func TestDoctor(t *testing.T) {
	found, status := doctor(t)
	for name := range environments(t) {
		if f := found["sandbox "+name]; !f.OK || !f.Needed {
			t.Errorf("sandbox %s: %+v", name, f)
		}
	}
	for _, name := range []string{"bubblewrap", "user namespaces", "system call filter"} {
		if f := found[name]; !f.OK || !f.Needed {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if status != 0 {
		t.Errorf("exit status %d: %+v", status, found)
	}
	by := sandbox.ByAgent
	if found["control groups"].OK {
		by = "cgroup"
	}
	c := start(t)
	patience.Until(t, "the log says as doctor does that limits are held by "+by, func() bool { return strings.Contains(c.Log(), "limits by="+by) })
}

// What is broken on purpose is found, each fault by its name.
func TestDoctorFindsBrokenArtifacts(t *testing.T) {
	folder := t.TempDir()
	shebang, object, _ := strings.Cut(description(t), "\n")
	bubblewrap := between(t, object, `"bubblewrap":"`, `"`)
	tree := between(t, object, `"--ro-bind","`, `"`)
	for name, text := range map[string]string{
		"no-closure":    shebang + "\n" + strings.ReplaceAll(object, tree, "/nix/store/00000000000000000000000000000000-gone"),
		"no-bubblewrap": shebang + "\n" + strings.ReplaceAll(object, bubblewrap, "/does/not/exist/bwrap"),
		"no-launcher":   "#!/does/not/exist/jail\n" + object,
		"no-object":     shebang + "\n{",
		"another":       "#!/bin/sh\necho hello\n",
	} {
		artifact(t, folder, name, text)
	}
	found, status := doctor(t, "NIX_SANDBOX_DIR="+folder)
	for name, want := range map[string]string{
		"no-closure":    "00000000000000000000000000000000-gone",
		"no-bubblewrap": "/does/not/exist/bwrap",
		"no-launcher":   "no such file",
		"no-object":     "does not describe a sandbox",
		"another":       "stream broke",
	} {
		if f := found["sandbox "+name]; f.OK || !strings.Contains(f.Found, want) {
			t.Errorf("%s: %+v, want %q in it", name, f, want)
		}
	}
	if !found["sandbox bash"].OK || status != 1 {
		t.Errorf("exit status %d, %+v", status, found["sandbox bash"])
	}
}

// missing begins the server's words on what doctor would find.
const missing = `level=ERROR msg="what sandboxes need is missing" `

// What keeps sandboxes from starting is in the log before anybody calls, in
// doctor's words, also where none is kept ready that could fail.
func TestLogSaysWhatDoctorWould(t *testing.T) {
	folder := t.TempDir()
	// Root's sandboxes are other users', who start this program too.
	must.Do(t, os.Chmod(filepath.Dir(folder), 0o755))
	broken := filepath.Join(folder, "bwrap")
	must.Write(t, broken, "#!/bin/sh\necho 'bwrap: it is broken' >&2\nexit 1\n", 0o755)
	sandboxes := filepath.Join(folder, "sandboxes")
	variant(t, sandboxes, "broken", broken)
	overlaid := []string{"NIX_SANDBOX_DIR=" + sandboxes, "PROJECT_DIR=" + t.TempDir(), "PROJECT_MODE=overlay"}
	var f finding
	all, _ := examine(t, overlaid...)
	for _, one := range all {
		if one.Name == "user namespaces" && !one.OK {
			f = one
		}
	}
	if want := broken + " makes no sandbox here: bwrap: it is broken"; f.Found != want {
		t.Fatalf("doctor: %+v", f)
	}
	c := start(t, overlaid...)
	patience.Wait(t, patience.Long, func() string { return "the log does not say so: " + c.Log() },
		func() bool {
			return strings.Contains(c.Log(), missing+fmt.Sprintf("what=%q error=%q hint=%q", f.Name, f.Found, f.Fix))
		})
	if n := strings.Count(c.Log(), missing); n != 1 {
		t.Errorf("it says so %d times, want once: %s", n, c.Log())
	}
}

func between(t *testing.T, text, before, after string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, before)
	word, _, ended := strings.Cut(rest, after)
	if !found || !ended {
		t.Fatalf("no %s… in %.300s", before, text)
	}
	return word
}

// Where the system forbids user namespaces nothing runs, and doctor, the log
// and the answer say the same.
func TestRefusalNoUserns(t *testing.T) {
	if os.Getenv("NIX_SANDBOX_TEST_MACHINE") != "no-userns" {
		t.Skip("user namespaces are allowed here: see tests/vm")
	}
	const want = "this system forbids user namespaces: user.max_user_namespaces is 0"
	found, status := doctor(t)
	if f := found["user namespaces"]; f.OK || f.Found != want || f.Fix != "an administrator allows them with: sysctl -w user.max_user_namespaces=15000" {
		t.Errorf("doctor: %+v", f)
	}
	for name := range environments(t) {
		if f := found["sandbox "+name]; f.OK || f.Found != want {
			t.Errorf("doctor: %+v", f)
		}
	}
	if status != 1 {
		t.Errorf("doctor: exit status %d", status)
	}
	c := start(t)
	patience.Wait(t, patience.Long, func() string { return "the log does not say so: " + c.Log() },
		func() bool { return strings.Contains(c.Log(), missing+`what="user namespaces" error="`+want+`"`) })
	answer := c.Run(mcptest.Arguments{Code: "echo ran", Env: "bash"})
	if !answer.IsError || strings.Contains(answer.Text(), "ran") || !strings.Contains(answer.Text()+c.Log(), want) {
		t.Errorf("%+v; the log: %s", answer, c.Log())
	}
}

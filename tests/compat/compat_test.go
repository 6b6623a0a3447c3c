// Package compat shows that hardening breaks no honest program: it runs those
// in testdata in built sandboxes, each in a fresh one.
//
// Package undertest names the sandboxes. A program runs in the one that has the
// name of its folder in testdata, and is skipped where there is none. Its last
// line is "ok", or "skip: " and what its environment lacks.
package compat

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

func TestPrograms(t *testing.T) {
	programs := must.Get(filepath.Glob("testdata/*/*"))(t)
	if len(programs) < 15 {
		t.Fatalf("%d programs in testdata, want at least 15", len(programs))
	}
	for _, program := range programs {
		name := must.Get(filepath.Rel("testdata", program))(t)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := filepath.Join(undertest.Artifact(t, filepath.Dir(name)), "bin", "run")
			code := must.Get(os.ReadFile(program))(t)
			out, errs, err := execute(t, run, code)
			if err != nil {
				t.Fatalf("%v\n%s%s", err, out, errs)
			}
			lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
			last := lines[len(lines)-1]
			if reason, skipped := strings.CutPrefix(last, "skip: "); skipped {
				t.Skip(reason)
			}
			if last != "ok" {
				t.Errorf("the last line is %q, want ok\n%s%s", last, out, errs)
			}
		})
	}
}

// A program that fails is seen to fail.
func TestPrograms_ControlFails(t *testing.T) {
	run := filepath.Join(undertest.Artifact(t, "bash"), "bin", "run")
	if out, _, err := execute(t, run, []byte("set -e\nfalse\necho ok\n")); err == nil || out != "" {
		t.Errorf("output %q, error %v, want none and a failure", out, err)
	}
}

func execute(t *testing.T, run string, code []byte, environ ...string) (out, errs string, err error) {
	t.Helper()
	// A program starts several others, each of which takes as long as a sandbox where it is
	// emulated.
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience.Answer())
	defer cancel()
	cmd := exec.CommandContext(ctx, run)
	cmd.Env = append(undertest.Machines(), environ...)
	cmd.Stdin = bytes.NewReader(code)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

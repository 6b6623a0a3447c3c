// Package compat shows that hardening breaks no honest program: it runs those
// in testdata in built sandboxes, each in a fresh one.
//
// NIX_SANDBOX_ARTIFACTS names a folder that holds artifacts under the names
// of testdata's folders; an artifact that is not there is skipped. A program
// says "ok" in its last line, or "skip: " and what its environment lacks.
package compat

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const variable = "NIX_SANDBOX_ARTIFACTS"

// patience bounds each program; none needs more than a few seconds.
const patience = 60 * time.Second

func TestPrograms(t *testing.T) {
	artifacts := os.Getenv(variable)
	if artifacts == "" {
		t.Skip("set " + variable + " to a folder of built sandboxes: bash, c, node, python")
	}
	programs, err := filepath.Glob("testdata/*/*")
	if err != nil {
		t.Fatal(err)
	}
	if len(programs) < 15 {
		t.Fatalf("%d programs in testdata, want at least 15", len(programs))
	}
	for _, program := range programs {
		name, err := filepath.Rel("testdata", program)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			run := filepath.Join(artifacts, filepath.Dir(name), "bin", "run")
			if _, err := os.Stat(run); err != nil {
				t.Skipf("no sandbox: %v", err)
			}
			code, err := os.ReadFile(program)
			if err != nil {
				t.Fatal(err)
			}
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
func TestControl(t *testing.T) {
	run := filepath.Join(os.Getenv(variable), "bash", "bin", "run")
	if _, err := os.Stat(run); err != nil {
		t.Skipf("set %s to a folder that holds the sandbox bash: %v", variable, err)
	}
	if out, _, err := execute(t, run, []byte("set -e\nfalse\necho ok\n")); err == nil || out != "" {
		t.Errorf("output %q, error %v, want none and a failure", out, err)
	}
}

func execute(t *testing.T, run string, code []byte, environ ...string) (out, errs string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, run)
	cmd.Env = append([]string{}, environ...)
	cmd.Stdin = bytes.NewReader(code)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

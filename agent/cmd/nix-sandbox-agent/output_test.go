package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Code whose output goes to a file of the user's adds to it, and gets neither what
// was in it nor its mode.
func TestRun_AddsToAFile(t *testing.T) {
	const code = "import os\nfor change in (lambda: os.ftruncate(1, 0), lambda: os.fchmod(1, 0o4755)):\n" +
		"    try:\n        change()\n    except OSError:\n        pass\n_ = os.write(1, b'new\\n')\n"
	write := func(cmd *exec.Cmd) (string, os.FileMode) {
		log := filepath.Join(t.TempDir(), "log")
		must.Write(t, log, "earlier\n", 0o644)
		file := must.Get(os.OpenFile(log, os.O_RDWR|os.O_APPEND, 0))(t)
		defer file.Close()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(code), file, file
		must.Do(t, cmd.Run())
		return string(must.Get(os.ReadFile(log))(t)), must.Get(os.Stat(log))(t).Mode()
	}
	text, mode := write(jailed(t, "run", "@python"))
	if text != "earlier\nnew\n" || mode != 0o644 {
		t.Errorf("the file is %q with mode %v", text, mode)
	}
	text, mode = write(exec.Command("python3", "-"))
	if text != "new\n" || mode&os.ModeSetuid == 0 {
		t.Errorf("the control left %q with mode %v", text, mode)
	}
}

// All of the output reaches files, in the order in which it was written where
// both streams go to one.
func TestRun_WritesFilesWhole(t *testing.T) {
	folder := t.TempDir()
	open := func(name string) *os.File { return must.Get(os.Create(filepath.Join(folder, name)))(t) }
	both := open("both")
	cmd := jailed(t, "run", "@bash")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("for i in {1..500}; do echo o$i; echo e$i >&2; done; sleep 1000 & exit 3"), both, both
	_ = cmd.Run()
	var want bytes.Buffer
	for i := range 500 {
		fmt.Fprintf(&want, "o%d\ne%[1]d\n", i+1)
	}
	if got := must.Get(os.ReadFile(both.Name()))(t); string(got) != want.String() || cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("status %d, %q", cmd.ProcessState.ExitCode(), got)
	}
	out, log := open("out"), open("log")
	cmd = jailed(t, "run", "@bash")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("head -c 50000000 /dev/zero; echo end >&2"), out, log
	must.Do(t, cmd.Run())
	if size, text := must.Get(out.Stat())(t).Size(), must.Get(os.ReadFile(log.Name()))(t); size != 50000000 || string(text) != "end\n" {
		t.Errorf("%d bytes of output, %q of errors", size, text)
	}
}

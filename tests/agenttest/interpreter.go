package agenttest

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Folder is where an interpreter of this project is described: the folder of
// that name in nix/interpreters.
func Folder(t testing.TB, name string) string {
	t.Helper()
	root := must.Get(os.Getwd())(t)
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return filepath.Join(root, "nix", "interpreters", name)
		}
		if root = filepath.Dir(root); root == "/" {
			t.Fatal("the tests run outside of the module: no go.mod above the working directory")
		}
	}
}

// Interpreters returns the names of the project's interpreters.
func Interpreters(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(Folder(t, "*"), "interpreter.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d interpreters, %v", len(files), err)
	}
	var names []string
	for _, file := range files {
		names = append(names, filepath.Base(filepath.Dir(file)))
	}
	return names
}

// Driver makes the folder of an interpreter's driver as Nix does, but without
// what Nix has the interpreter compile. It returns the folder and the
// interpreter's usual command line, and skips the test where this machine does
// not have the interpreter.
func Driver(t testing.TB, name string) (folder string, command []string) {
	t.Helper()
	source := Folder(t, name)
	text := must.Get(os.ReadFile(filepath.Join(source, "interpreter.json")))(t)
	var known struct {
		Interpreter string
		Driver      json.RawMessage
		Beside      map[string]string
	}
	var described driver.Driver
	if err := json.Unmarshal(text, &known); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := json.Unmarshal(known.Driver, &described); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	command = strings.Fields(known.Interpreter)
	command = command[:len(command)-1] // without -c or -e
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Skipf("no %s here: %v", command[0], err)
	}
	folder = t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "driver.json"), known.Driver, 0o644))
	program := must.Get(os.ReadFile(filepath.Join(source, described.Program)))(t)
	must.Do(t, os.WriteFile(filepath.Join(folder, described.Program), program, 0o644))
	if modules := filepath.Join(source, "modules"); exists(modules) {
		must.Do(t, os.CopyFS(filepath.Join(folder, "modules"), os.DirFS(modules)))
	}
	for program := range known.Beside {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Skipf("no %s here: %v", program, err)
		}
		if err := os.Symlink(path, filepath.Join(folder, program)); err != nil {
			t.Fatal(err)
		}
	}
	return folder, command
}

// Bare has Python find no modules but its own, whichever are installed on this machine: it
// is started as that of a virtual environment.
func Bare(t testing.TB) Option {
	t.Helper()
	return func(s *interpreter.Spec) {
		if len(s.Command) == 0 || s.Command[0] != "python3" {
			return
		}
		real := must.Get(python())(t)
		folder := t.TempDir()
		s.Command = slices.Clone(s.Command)
		s.Command[0] = filepath.Join(folder, "bin", "python3")
		must.Write(t, filepath.Join(folder, "pyvenv.cfg"), "home = "+filepath.Dir(real)+"\ninclude-system-site-packages = false\n", 0o644)
		must.Do(t, os.Mkdir(filepath.Dir(s.Command[0]), 0o755))
		must.Do(t, os.Symlink(real, s.Command[0]))
	}
}

// python returns the path of Python itself: the one on the PATH may be a script that
// chooses between several.
var python = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("python3", "-I", "-c", "import os, sys; print(os.path.realpath(sys._base_executable))")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	text, err := io.ReadAll(out)
	// The agent's table of processes may have taken its status.
	if waitErr := cmd.Wait(); waitErr != nil && !errors.Is(waitErr, syscall.ECHILD) {
		err = errors.Join(err, waitErr)
	}
	return strings.TrimSpace(string(text)), err
})

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

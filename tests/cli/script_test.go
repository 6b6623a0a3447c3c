package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// TestScripts runs testdata/*.txtar: what the commands do without a terminal.
// In a script, nix-sandbox-mcp is the server under test, $SERVER is the path
// that it is started by, $STORED the one in the store, and $SHARE is its folder of documentation and metadata.
// These commands are added to those of package testscript:
//
//	exits STATUS COMMAND...     runs a command that must end with this status
//	fails STATUS PROBLEM HINT ARGUMENT...
//	                            runs nix-sandbox-mcp, which must end with this
//	                            status, print exactly this error and this hint
//	                            (none where HINT is empty), and nothing else
func TestScripts(t *testing.T) {
	server := undertest.Server(t)
	real := must.Get(filepath.EvalSymlinks(server))(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			bin := filepath.Join(env.WorkDir, ".bin")
			home := filepath.Join(env.WorkDir, ".home")
			for _, folder := range []string{bin, home} {
				if err := os.Mkdir(folder, 0o755); err != nil {
					return err
				}
			}
			path := filepath.Join(bin, "nix-sandbox-mcp")
			env.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			env.Setenv("HOME", home)
			env.Setenv("NIX_SANDBOX_DIR", filepath.Join(env.WorkDir, "sandboxes"))
			env.Setenv("SERVER", path)
			env.Setenv("STORED", real)
			env.Setenv("NIX_SETTINGS", os.Getenv("NIX_CONFIG"))
			env.Setenv("SHARE", filepath.Join(filepath.Dir(real), "..", "share"))
			return os.Symlink(server, path)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: exits STATUS COMMAND...")
				}
				exits(ts, args[0], args[1], args[2:]...)
			},
			"fails": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 3 {
					ts.Fatalf("usage: fails STATUS PROBLEM HINT ARGUMENT...")
				}
				want := "nix-sandbox-mcp: error: " + args[1] + "\n"
				if args[2] != "" {
					want += "nix-sandbox-mcp: hint: " + args[2] + "\n"
				}
				exits(ts, args[0], "nix-sandbox-mcp", args[3:]...)
				if stdout, stderr := ts.ReadFile("stdout"), ts.ReadFile("stderr"); stdout != "" || stderr != want {
					ts.Fatalf("stdout is %q, stderr is\n%swant\n%s", stdout, stderr, want)
				}
			},
		},
	})
}

// exits runs a command and checks its exit status.
func exits(ts *testscript.TestScript, want, command string, args ...string) {
	status := 0
	err := ts.Exec(command, args...)
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		status = ended.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(status) != want {
		ts.Fatalf("exit status %d, want %s", status, want)
	}
}

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/background"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// agentShell runs the shell commands of an agent in a folder, as its hook does.
type agentShell struct {
	t              *testing.T
	folder         string
	env            []string
	out            string // of the last command
	status         int
	runtime, state string
}

func newAgentShell(t *testing.T, folder string, variables ...string) *agentShell {
	a := &agentShell{t: t, folder: folder, runtime: t.TempDir(), state: t.TempDir()}
	a.env = append(append(command(t).Env, "XDG_RUNTIME_DIR="+a.runtime, "XDG_STATE_HOME="+a.state, "PATH="+os.Getenv("PATH"), "NIX_CONFIG="+os.Getenv("NIX_CONFIG")), variables...)
	background.EndServers(t, a.runtime)
	return a
}

// do runs the program under test, and keeps what it prints.
func (a *agentShell) do(words ...string) {
	cmd := exec.Command(undertest.Server(a.t), words...)
	cmd.Dir, cmd.Env = a.folder, a.env
	out, _ := cmd.CombinedOutput()
	a.out, a.status = string(out), cmd.ProcessState.ExitCode()
}

// ready waits until the environment of the project has been built.
func (a *agentShell) ready() {
	a.t.Helper()
	patience.Wait(a.t, building, func() string { return a.out }, func() bool {
		a.do("exec", "-c", "true")
		return !strings.Contains(a.out, "being built")
	})
}

// want runs a command, whose output contains a text.
func (a *agentShell) want(text, out string, status int) {
	a.t.Helper()
	if a.do("exec", "-c", text); !strings.Contains(a.out, out) || a.status != status {
		a.t.Errorf("%s: %s, status %d; want %q, %d", text, a.out, a.status, out, status)
	}
}

// A repository with a flake is worked on by an agent: its file tool writes on the host, and its shell
// runs tests and makes files in the sandbox, until the user has the result.
func TestAgent_WorksOnARepository(t *testing.T) {
	nix(t)
	for _, mode := range []string{"overlay", "write", "readonly", "worktree"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			root := must.Get(filepath.EvalSymlinks(must.Get(os.MkdirTemp("/var/tmp", "agent"))(t)))(t)
			t.Cleanup(func() { os.RemoveAll(root) })
			folder := filepath.Join(root, "repository")
			commandIn(t, root, nil, "cp", "-R", projectFlake(t, `"yes"`, ""), folder)
			var variables []string
			switch mode {
			case "worktree":
				commandIn(t, folder, nil, "git", "-c", "user.name=x", "-c", "user.email=x@localhost", "commit", "-q", "-m", "first")
				commandIn(t, folder, nil, "git", "worktree", "add", "-q", "../tree")
				folder = filepath.Join(root, "tree")
			case "overlay":
			default:
				variables = append(variables, "PROJECT_MODE="+mode)
			}
			a := newAgentShell(t, folder, variables...)
			edit := func(name, text string) { must.Write(t, filepath.Join(folder, name), text, 0o644) }
			edit("calc.py", "def double(x):\n    return x\n")
			edit("test_calc.py", "import unittest, calc\n\nclass Test(unittest.TestCase):\n    def test(self):\n        self.assertEqual(calc.double(21), 42)\n")
			a.ready()
			a.want(`echo "$FOUND"; pwd`, "yes\n"+folder+"\n", 0)
			a.want("export PYTHONDONTWRITEBYTECODE=1; python3 -m unittest -q", "AssertionError: 21 != 42", 1)
			edit("calc.py", "def double(x):\n    return 2 * x\n")
			a.want("python3 -m unittest -q", "OK", 0)
			made := filepath.Join(folder, "docs", "table.md")
			make := `mkdir -p docs && python3 -c 'import calc; print("| 1 |", calc.double(1), "|")' > docs/table.md`
			if mode == "readonly" {
				a.want(make, "Read-only file system", 1)
				a.want("cd /tmp && mkdir -p docs && echo made > docs/table.md && cat docs/table.md", "made", 0)
				if _, err := os.Lstat(made); err == nil {
					t.Error("a file was made in the project")
				}
				return
			}
			a.want(make, "", 0)
			a.want("git status --short", "?? docs/", 0)
			if mode != "write" {
				if _, err := os.Lstat(made); err == nil {
					t.Fatal("the file is in the project before the user took it")
				}
				a.do("changes", "--apply", "shell")
				if a.status != 0 || !strings.Contains(a.out, "1 written, 0 deleted") {
					t.Errorf("applying: %s, status %d", a.out, a.status)
				}
			}
			if text, err := os.ReadFile(made); err != nil || string(text) != "| 1 | 2 |\n" {
				t.Errorf("the file has %q, %v", text, err)
			}
			a.want("cat docs/table.md; git -c user.name=x -c user.email=x@localhost diff --stat", "| 1 | 2 |", 0)
		})
	}
}

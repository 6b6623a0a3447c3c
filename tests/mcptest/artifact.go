package mcptest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/agenttest"
)

// built is the agent that the tests of one process share, and its folder.
var built struct {
	once  sync.Once
	dir   string
	agent string
	err   error
}

// Main runs a package's tests and removes what [Artifacts] built for them; it
// is for TestMain. The result is the exit status.
func Main(m *testing.M) int {
	defer func() { os.RemoveAll(built.dir) }()
	return m.Run()
}

// agent builds the agent once.
func agent(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "nix-sandbox-agent-"); built.err != nil {
			return
		}
		built.agent = filepath.Join(built.dir, "nix-sandbox-agent")
		build := exec.Command("go", "build", "-o", built.agent, "github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/cmd/nix-sandbox-agent")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build the agent: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.agent
}

// Artifacts makes an artifact for each of python, bash and node that this
// machine has, and one of a plain command, cat: the real agent in a jail of
// the machine's bubblewrap. It stands where the artifacts that Nix builds are
// not at hand, and shows all of the machine's /usr and /nix/store. It skips the test where
// bubblewrap does not work. The result is the environments of a server's
// metadata, by name.
func Artifacts(t testing.TB) map[string]map[string]any {
	t.Helper()
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		t.Skip("bubblewrap is not installed")
	}
	dir := t.TempDir()
	jail := []string{
		bwrap, "--unshare-all", "--die-with-parent", "--as-pid-1", "--new-session", "--clearenv",
		"--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
		"--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--ro-bind-try", "/etc/alternatives", "/etc/alternatives", "--ro-bind-try", "/nix/store", "/nix/store",
		"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/workspace", "--chdir", "/workspace",
		"--setenv", "PATH", "/usr/local/bin:/usr/bin", "--setenv", "HOME", "/workspace", "--setenv", "TMPDIR", "/workspace",
		"--setenv", "LANG", "C.UTF-8", "--setenv", "USER", "sandbox",
		"--ro-bind", agent(t), "/agent",
	}
	if out, err := exec.Command(bwrap, append(jail[1:len(jail):len(jail)], "/usr/bin/true")...).CombinedOutput(); err != nil {
		t.Skipf("bubblewrap does not work here: %v: %s", err, out)
	}
	environments := map[string]map[string]any{}
	for name, interpreter := range map[string]string{"python": "python3", "bash": "bash", "node": "node", "cat": "cat"} {
		path, ok := program(interpreter)
		if !ok {
			continue
		}
		fields := map[string]any{
			"schema": 1, "name": name, "backend": "jail", "interpreter_type": name, "closure": "the-closure-of-" + name,
			"timeout_seconds": 30, "description": "Test " + name,
		}
		binds, command := "", "--pipe "+path
		if name == "cat" {
			fields["interpreter_type"] = "command"
		} else {
			driver, _ := agenttest.Driver(t, name)
			binds = fmt.Sprintf("--ro-bind %s /driver --ro-bind %[2]s %[2]s", driver, agenttest.Folder(t, name))
			command = "--driver /driver " + path
			fields["language"] = map[string]any{"sessions": true}
		}
		for field, file := range map[string]string{"exec": "run", "session_exec": "session-run"} {
			verb := "run"
			if field == "session_exec" {
				verb = "serve"
			}
			path := filepath.Join(dir, name, "bin", file)
			project := `${PROJECT_DIR:+--ro-bind "$PROJECT_DIR" "$PROJECT_MOUNT"}`
			line := fmt.Sprintf("#!/bin/sh\nexec %s %s %s /agent %s %s\n", strings.Join(jail, " "), binds, project, verb, command)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(line), 0o755); err != nil {
				t.Fatal(err)
			}
			fields[field] = path
		}
		environments[name] = fields
	}
	return environments
}

// program finds a program where such a jail has it.
func program(name string) (string, bool) {
	if path, err := exec.LookPath(name); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil && strings.HasPrefix(path, "/nix/store/") {
			return path, true
		}
	}
	for _, folder := range []string{"/usr/local/bin", "/usr/bin"} {
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err == nil {
			return path, true
		}
	}
	return "", false
}

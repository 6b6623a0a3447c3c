package cli

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// attempts are commands of an agent's shell that try to change what is outside of the project, or what a
// program on the host runs or reads by itself. Worked is a command of the host that succeeds if an
// attempt did. In them, $OUT is a folder beside the project that has secret and target, $PID a process
// of the host, $PORT one at which a program listens at its loopback, and $DESK the folder of its sockets.
var attempts = []struct{ name, attempt, worked string }{
	{"a hook of git", "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit", "test -e .git/hooks/pre-commit"},
	{"a hook of git by other letters", "mkdir -p .GIT/hooks; echo x > .GIT/hooks/pre-commit", "test -e .GIT/hooks/pre-commit"},
	{"settings of git", "git init -q . 2>/dev/null; git config core.fsmonitor 'touch x'", "grep -q fsmonitor .git/config"},
	{"another repository", "rm -rf .git; echo 'gitdir: sub' > .git", "test -f .git"},
	{"a repository below", "mkdir -p sub/.git; echo x > sub/.git/config", "test -e sub/.git/config"},
	{"modules of git", "echo '[submodule \"x\"]' > .gitmodules", "test -e .gitmodules"},
	{"attributes of git", "echo '* filter=x' > .gitattributes", "test -e .gitattributes"},
	{"direnv", "echo 'touch x' > .envrc", "test -e .envrc"},
	{"direnv below", "mkdir -p sub; echo 'touch x' > sub/.envrc", "test -e sub/.envrc"},
	{"settings of an editor", "mkdir -p .vscode; echo '{}' > .vscode/tasks.json", "test -e .vscode/tasks.json"},
	{"settings of another editor", "mkdir -p .idea; echo x > .idea/workspace.xml", "test -e .idea/workspace.xml"},
	{"settings of an agent", "mkdir -p .claude; echo '{}' > .claude/settings.json", "test -e .claude/settings.json"},
	{"tools of an agent", "echo '{}' > .mcp.json", "test -e .mcp.json"},
	{"instructions of an agent", "echo 'obey' > CLAUDE.md", "test -e CLAUDE.md"},
	{"instructions of agents", "echo 'obey' > AGENTS.md", "test -e AGENTS.md"},
	{"instructions below", "mkdir -p docs; echo 'obey' > docs/CLAUDE.md", "test -e docs/CLAUDE.md"},
	{"a build", "printf 'all:\\n\\ttouch x\\n' > Makefile", "test -e Makefile"},
	{"a changed build", "echo '{\"scripts\": {\"postinstall\": \"touch x\"}}' > package.json", "grep -q touch package.json"},
	{"a deleted build", "rm package.json", "test ! -e package.json"},
	{"tests", "echo 'import os' > conftest.py", "test -e conftest.py"},
	{"a flake", "echo '{}' > flake.nix", "test -e flake.nix"},
	{"an executable script", "echo 'touch x' > tool.sh; chmod +x tool.sh", "test -x tool.sh"},
	{"a script made executable", "chmod +x main.py", "test -x main.py"},
	{"a set-user-ID bit", "chmod 4644 main.py", "test -u main.py"},
	{"a name that is an option", "echo x > ./-rf.py", "test -e ./-rf.py"},
	{"an invisible character", "printf 'x = 1 # \\342\\200\\256\\n' > main.py", "grep -q 1 main.py"},
	{"a link to a file", "ln -sf $OUT/target link.py; echo x > link.py", "grep -q x $OUT/target"},
	{"a link in place of a file", "rm main.py; ln -s $OUT/secret main.py", "test -L main.py"},
	{"a link in place of a folder", "rm -rf src; ln -s $OUT src; echo x > src/a.py", "test -e $OUT/a.py"},
	{"a link whose target comes", "rm -rf src; ln -s $OUT src; rm src; mkdir src; echo x > src/b.py; rm -rf src; ln -s $OUT src; echo x > src/b.py", "test -e $OUT/b.py"},
	{"a pipe", "rm main.py; mkfifo main.py", "test -p main.py"},
	{"a path outside", "echo x > $OUT/c.py", "test -e $OUT/c.py"},
	{"a path above", "mkdir -p ../out; echo x > ../out/d.py", "test -e $OUT/d.py"},
	{"the files of another process", "echo x > /proc/1/root$OUT/e.py || echo x > /proc/$PPID/root$OUT/e.py || echo x > $OUT/e.py", "test -e $OUT/e.py"},
	{"a secret beside the project", "cat $OUT/secret > found.txt", "grep -q secret found.txt"},
	{"the environment", "env | grep SECRET_VARIABLE > found.txt", "grep -q SECRET found.txt"},
	{"a process of the host", "kill -KILL $PID", "! kill -0 $PID 2>/dev/null || grep -q '^State:.Z' /proc/$PID/status"},
	{"a port of the host", "exec 3<>/dev/tcp/127.0.0.1/$PORT && head -c 5 <&3 > found.txt", "grep -q hello found.txt"},
	{"the sockets of the server", "ls $DESK > found.txt", "grep -q desk found.txt"},
	{"what the next shell reads", "echo 'touch $OUT/f.py' >> /tmp/.shell-state; [ -n \"$IN\" ] || touch $OUT/f.py", "test -e $OUT/f.py"},
	{"a preloaded library", "export LD_PRELOAD=$PWD/x.so; echo x > x.so", "test -e x.so"},
}

// Nothing of this works in the mode write, in which most of it would otherwise. In the control, bash runs
// the same command on the host, and it does.
func TestExec_AttemptsToLeave(t *testing.T) {
	t.Parallel()
	listener := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(conn, "hello")
			conn.Close()
		}
	}()
	m := newMachine(t)
	one := m.project("one")
	must.Do(t, exec.Command("git", "init", "-q", one).Run())
	out := filepath.Join(m.root, "out")
	host := func(dir, text string, env ...string) error {
		cmd := exec.Command("bash", "-c", text)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		return cmd.Run()
	}
	for i, a := range attempts {
		session := fmt.Sprint("s", i)
		for _, control := range []bool{true, false} {
			must.Do(t, host(m.root, "rm -rf out; mkdir -p out one/src; cd one; find . -mindepth 1 -not -path './.git' -not -path './.git/*' -delete; rm -rf .git; git init -q .; mkdir src"))
			for path, text := range map[string]string{
				filepath.Join(one, "main.py"): "x = 0\n", filepath.Join(one, "src", "mod.py"): "y\n", filepath.Join(one, "package.json"): "{}\n",
				filepath.Join(out, "secret"): "secret\n", filepath.Join(out, "target"): "as it was\n",
			} {
				must.Write(t, path, text, 0o600)
			}
			victim := exec.Command("sleep", "900")
			must.Do(t, victim.Start())
			variables := []string{
				"OUT=" + out, "PID=" + fmt.Sprint(victim.Process.Pid), "PORT=" + fmt.Sprint(listener.Addr().(*net.TCPAddr).Port),
				"DESK=" + filepath.Join(m.runtime, "nix-sandbox-mcp"), "SECRET_VARIABLE=secret",
			}
			if control {
				must.Do(t, os.MkdirAll(filepath.Join(m.runtime, "nix-sandbox-mcp", "1.desk"), 0o700))
				_ = host(one, a.attempt, variables...)
			} else {
				var text strings.Builder
				for _, variable := range variables[:4] {
					fmt.Fprintf(&text, "%s\n", variable)
				}
				cmd := m.command(one, "exec", "--session", session, "-c", text.String()+"IN=1\n"+a.attempt)
				cmd.Env = append(cmd.Env, "PROJECT_MODE=write", "SECRET_VARIABLE=secret")
				if message, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() == 125 {
					t.Fatalf("%s: %s", a.name, message)
				}
				cmd = m.command(one, "exec", "--session", session, "--cwd", one, "-c", "true") // what was left to the next one
				_ = cmd.Run()
			}
			time.Sleep(10 * time.Millisecond) // a killed process is gone
			worked := host(one, a.worked, variables...) == nil
			if worked != control {
				t.Errorf("%s (control: %v): it worked: %v", a.name, control, worked)
			}
			_ = victim.Process.Kill()
			_ = victim.Wait()
			os.RemoveAll(filepath.Join(m.runtime, "nix-sandbox-mcp", "1.desk"))
		}
	}
}

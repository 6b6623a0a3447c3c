package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/background"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// machine is a user's machine without a server: a home, and projects in folders that are no sandbox's own.
type machine struct {
	t             *testing.T
	root, runtime string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	undertest.Server(t) // or the test is skipped
	m := &machine{t: t, runtime: t.TempDir()}
	m.root = must.Get(filepath.EvalSymlinks(must.Get(os.MkdirTemp("/var/tmp", "exec"))(t)))(t)
	t.Cleanup(func() { os.RemoveAll(m.root) })
	background.EndServers(t, m.runtime)
	return m
}

func (m *machine) servers() []desk.Server {
	return desk.Find([]string{filepath.Join(m.runtime, "nix-sandbox-mcp")})
}

// project makes a folder that git knows.
func (m *machine) project(name string) string {
	m.t.Helper()
	folder := filepath.Join(m.root, name)
	must.Do(m.t, os.MkdirAll(filepath.Join(folder, ".git"), 0o700))
	return folder
}

func (m *machine) command(folder string, args ...string) *exec.Cmd {
	cmd := command(m.t, args...)
	cmd.Dir = folder
	cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+m.runtime, "HOME="+m.root)
	return cmd
}

// exec runs a text in the sandbox of a project.
func (m *machine) exec(folder, text string, args ...string) (stdout, stderr string, status int) {
	m.t.Helper()
	cmd := m.command(folder, append(append([]string{"exec"}, args...), "-c", text)...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	var ended *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &ended) {
		m.t.Fatal(err)
	}
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

func (m *machine) want(folder, text, stdout, stderr string, status int) {
	m.t.Helper()
	if out, log, code := m.exec(folder, text); out != stdout || log != stderr || code != status {
		m.t.Errorf("%s: %q, %q, status %d\nwant %q, %q, status %d", text, out, log, code, stdout, stderr, status)
	}
}

// A command is what it is in a shell of the project, and the next one finds what it left.
func TestExec_IsAShellOfTheProject(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	one := m.project("one")
	must.Write(t, filepath.Join(one, "file"), "of the host\n", 0o600)
	m.want(one, "pwd; cat file", one+"\nof the host\n", "", 0)
	m.want(filepath.Join(one, ".git"), "pwd", one+"\n", "", 0)
	m.want(one, "x=41; f() { echo $((x + 1)); }; declare -A map=([a b]=c); export y=$'two\\nlines'; mkdir sub; cd sub; exit 3", "", "", 3)
	m.want(one, `pwd; f; echo "${map[a b]}"; bash -c 'echo "$y"'; cd ..; echo new > file`, one+"/sub\n42\nc\ntwo\nlines\n", "", 0)
	m.want(one, "nosuch; echo 'never ends", "", "bash: -c: line 1: unexpected EOF while looking for matching `''\n", 2)
	m.want(one, "\nnosuch", "", "bash: line 2: nosuch: command not found\n", 127)
	m.want(one, "kill -KILL $$", "", "", 137)
	m.want(one, "set -e; z=1; false; echo not", "", "", 1)
	m.want(one, `echo $z; readonly r=1; echo $r; cat file`, "1\n1\nnew\n", "", 0)
	m.want(one, "head -c 3000000 /dev/zero | wc -c; printf '\\377\\000'", "3000000\n\xff\x00", "", 0)
	if text := string(must.Get(os.ReadFile(filepath.Join(one, "file")))(t)); text != "of the host\n" {
		t.Errorf("the file of the host has %q", text)
	}
	if out := string(must.Get(m.command(one, "changes", "shell").Output())(t)); !strings.Contains(out, "-of the host\n+new\n") {
		t.Errorf("the patch is %s", out)
	}
	// What others do in the project is seen by the next command, also if they replace files.
	must.Write(t, filepath.Join(one, "edited"), "1\n", 0o600)
	m.want(one, "cat edited", "1\n", "", 0)
	must.Write(t, filepath.Join(one, "other"), "2\n", 0o600)
	must.Do(t, os.Rename(filepath.Join(one, "other"), filepath.Join(one, "edited")))
	m.want(one, "cat edited; ls other 2>&1 | wc -l", "2\n1\n", "", 0)
	must.Do(t, os.Remove(filepath.Join(one, "edited")))
	m.want(one, "test -e edited", "", "", 1)
	if n := len(m.servers()); n != 1 {
		t.Errorf("%d servers", n)
	}
}

// In the mode write, the project itself has what commands make of source code, and the rest waits for
// the user. What the user then changes is seen by the next command.
func TestExec_WritesIntoTheProject(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	one := m.project("one")
	file, other := filepath.Join(one, "a.py"), filepath.Join(one, "b.py")
	must.Write(t, file, "1\n", 0o600)
	exec := func(text string) (string, string) {
		t.Helper()
		cmd := m.command(one, "exec", "-c", text)
		cmd.Env = append(cmd.Env, "PROJECT_MODE=write")
		var out, log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &log
		must.Do(t, cmd.Run())
		return out.String(), log.String()
	}
	has := func(path, want string) {
		t.Helper()
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v, want %q", path, text, err, want)
		}
	}
	if out, log := exec("cat a.py; echo 2 > a.py; echo new > b.py; echo x > .envrc; echo all: > Makefile; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit"); out != "1\n" ||
		!strings.Contains(log, "[not written into the project: .envrc: ") || !strings.Contains(log, "[not written into the project: Makefile: ") {
		t.Errorf("%q, %q", out, log)
	}
	has(file, "2\n")
	has(other, "new\n")
	for _, name := range []string{".envrc", "Makefile", ".git/hooks/pre-commit"} {
		if _, err := os.Lstat(filepath.Join(one, name)); err == nil {
			t.Errorf("%s is in the project", name)
		}
	}
	// The user's editor replaces the file, and deletes another one.
	must.Write(t, filepath.Join(m.root, "new"), "3\n", 0o600)
	must.Do(t, os.Rename(filepath.Join(m.root, "new"), file))
	must.Do(t, os.Remove(other))
	time.Sleep(50 * time.Millisecond) // longer than the clock of files takes to tell two changes apart
	if out, log := exec("cat a.py; ls; rm a.py; cat .envrc"); out != "3\nMakefile\na.py\nx\n" || log != "" {
		t.Errorf("%q, %q", out, log)
	}
	if _, err := os.Lstat(file); err == nil {
		t.Error("a deleted file is in the project")
	}
	// Both change one file at the same time: the user's stays, and the model is told.
	must.Write(t, file, "1\n", 0o600)
	cmd := m.command(one, "exec", "-c", "echo of the sandbox > a.py; echo ready; read; echo")
	cmd.Env = append(cmd.Env, "PROJECT_MODE=write")
	in, ready := must.Get(cmd.StdinPipe())(t), must.Get(cmd.StdoutPipe())(t)
	var log bytes.Buffer
	cmd.Stderr = &log
	must.Do(t, cmd.Start())
	must.Get(ready.Read(make([]byte, 16)))(t)
	must.Write(t, file, "of the user\n", 0o600)
	in.Close()
	must.Get(io.Copy(io.Discard, ready))(t)
	must.Do(t, cmd.Wait())
	has(file, "of the user\n")
	if !strings.Contains(log.String(), "[not written into the project: a.py: ") {
		t.Errorf("%q", &log)
	}
}

// Git works in a worktree, whose repository is elsewhere and cannot be written to.
func TestExec_KnowsWorktrees(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	main, tree := filepath.Join(m.root, "main"), filepath.Join(m.root, "tree")
	git := func(folder string, args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", folder, "-c", "user.name=x", "-c", "user.email=x@localhost"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	must.Do(t, os.Mkdir(main, 0o700))
	git(main, "init", "-q")
	must.Write(t, filepath.Join(main, "file"), "1\n", 0o600)
	must.Write(t, filepath.Join(main, "secret"), "x\n", 0o600)
	git(main, "add", "file")
	git(main, "commit", "-q", "-m", "first")
	git(main, "worktree", "add", "-q", tree)
	m.want(tree, "git log --format=%s; echo 2 > file; git diff --stat | tail -n 1", "first\n 1 file changed, 1 insertion(+), 1 deletion(-)\n", "", 0)
	m.want(tree, "cat "+main+"/secret 2>/dev/null; touch "+main+"/.git/hooks/x 2>/dev/null", "", "", 1)
}

// Where systemd has made no folder, as in a container, commands find servers by one of the user's state.
// If there is no folder at all, they say that they cannot look.
func TestExec_WithoutRuntimeFolder(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	without := func(state string, args ...string) *exec.Cmd {
		cmd := m.command(m.project("one"), args...)
		cmd.Env = append(slices.DeleteFunc(cmd.Env, func(one string) bool { return strings.HasPrefix(one, "XDG_RUNTIME_DIR=") }), "XDG_STATE_HOME="+state)
		return cmd
	}
	if _, err := os.Stat(fmt.Sprintf("/run/user/%d", os.Geteuid())); err == nil {
		t.Skip("systemd has made a folder for this user")
	}
	if out, err := without(m.runtime, "exec", "-c", "echo here").CombinedOutput(); err != nil || string(out) != "here\n" {
		t.Fatalf("exec: %v, %s", err, out)
	}
	for _, args := range [][]string{{"sessions"}, {"top"}, {"exec", "-c", "echo shell"}} {
		if out, err := without(m.runtime, args...).CombinedOutput(); err != nil || !strings.Contains(string(out), "shell") {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
	must.Do(t, os.Chmod(filepath.Join(m.runtime, "nix-sandbox-mcp", "run"), 0o755))
	if out, err := without(m.runtime, "sessions").CombinedOutput(); err == nil || !strings.Contains(string(out), "running servers cannot be looked for: ") {
		t.Errorf("sessions of a folder of others: %v, %s", err, out)
	}
	must.Do(t, os.Chmod(filepath.Join(m.runtime, "nix-sandbox-mcp", "run"), 0o700))
}

// Input, arguments, signals and time limits reach the command.
func TestExec_PassesThings(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	one := m.project("one")
	cmd := m.command(one, "exec", "--", "cat", "-", "/dev/null")
	cmd.Stdin = strings.NewReader(strings.Repeat("line\n", 100_000))
	if out, err := cmd.Output(); err != nil || len(out) != 500_000 {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	cmd = m.command(one, "exec", "--", "printf", "%s|", "a b", `'"$x`, "", "*")
	if out, err := cmd.Output(); err != nil || string(out) != `a b|'"$x||*|` {
		t.Errorf("%q, %v", out, err)
	}
	cmd = m.command(one, "exec", "-c", "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.01; done")
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	buffer := make([]byte, 64)
	n := must.Get(out.Read(buffer))(t)
	must.Do(t, cmd.Process.Signal(syscall.SIGTERM))
	rest := string(buffer[:n])
	for {
		n, err := out.Read(buffer)
		if rest += string(buffer[:n]); err != nil {
			break
		}
	}
	if _ = cmd.Wait(); rest != "ready\ncaught\n" || cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("%q, status %d", rest, cmd.ProcessState.ExitCode())
	}
	if _, log, status := m.exec(one, "sleep 900", "--timeout", "300ms"); status != 124 || log != "nix-sandbox-mcp: the command was ended after 300ms\n" {
		t.Errorf("%q, status %d", log, status)
	}
	if _, _, status := m.exec(one, "trap '' TERM; sleep 900", "--timeout", "300ms"); status != 124 {
		t.Errorf("status %d", status)
	}
	// Signals, time limits and the end of a client overtake input that the command does not read.
	endless := func(args ...string) *exec.Cmd {
		cmd := m.command(one, append([]string{"exec"}, args...)...)
		cmd.Stdin = must.Get(os.Open("/dev/zero"))(t)
		return cmd
	}
	if err := endless("--timeout", "500ms", "-c", "sleep 900").Run(); err == nil || !strings.Contains(err.Error(), "124") {
		t.Errorf("with input that is not read: %v", err)
	}
	if out, err := endless("-c", "head -c 3000000 | wc -c").Output(); err != nil || string(out) != "3000000\n" {
		t.Errorf("%q, %v", out, err)
	}
	cmd = endless("-c", "echo ready; exec sleep 900")
	out = must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	must.Get(out.Read(buffer))(t)
	must.Do(t, cmd.Process.Signal(syscall.SIGTERM))
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 143 {
		t.Errorf("status %d after a signal", cmd.ProcessState.ExitCode())
	}
	// A program that a command leaves behind goes on, and its pipes delay no command.
	began := time.Now()
	m.want(one, "sleep 900 & echo $! > pid", "", "", 0)
	m.want(one, "kill $(cat pid)", "", "", 0)
	if took := time.Since(began); took > patience.For(patience.Long) {
		t.Errorf("it took %v", took)
	}
	// A client that is killed takes its command with it.
	cmd = m.command(one, "exec", "-c", "echo $$ > running; exec sleep 900")
	must.Do(t, cmd.Start())
	patience.Until(t, "the command runs", func() bool { out, _, _ := m.exec(one, "cat running"); return out != "" })
	must.Do(t, cmd.Process.Kill())
	_ = cmd.Wait()
	patience.Until(t, "the command ends", func() bool { _, _, status := m.exec(one, "kill -0 $(cat running) 2>/dev/null"); return status == 1 })
}

// Commands of two projects, sessions or at one time do not meet.
func TestExec_KeepsProjectsApart(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	one, two := m.project("one"), m.project("two")
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			folder := []string{one, two}[i%2]
			if out, log, status := m.exec(folder, "pwd"); out != folder+"\n" || status != 0 {
				t.Errorf("%q, %q, status %d", out, log, status)
			}
		})
	}
	all.Wait()
	if n := len(m.servers()); n != 2 {
		t.Errorf("%d servers for two projects", n)
	}
	m.want(one, "x=one; echo $x > made", "", "", 0)
	m.want(two, "echo [$x]; ls", "[]\n", "", 0)
	if out, _, _ := m.exec(one, "echo [$x]; cat made 2>&1", "--session", "other"); !strings.HasPrefix(out, "[]\n") || strings.Contains(out, "one\n") {
		t.Errorf("another session has %q", out)
	}
	// Neither sees the other's, nor the home.
	must.Write(t, filepath.Join(m.root, "secret"), "x", 0o600)
	m.want(one, "cat "+two+"/made "+m.root+"/secret 2>/dev/null", "", "", 1)
}

// Without a sandbox no command runs: the status is 125.
func TestExec_NeverRunsOutside(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	one := m.project("one")
	canary := filepath.Join(one, "canary")
	touch := "touch " + canary
	fails := func(name, want string, cmd *exec.Cmd) {
		t.Helper()
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s, want %s", name, err, out, want)
		}
		if _, err := os.Lstat(canary); err == nil {
			t.Fatalf("%s: the command ran outside", name)
		}
	}
	fails("no such environment", `there is no environment "none"`, m.command(one, "exec", "--env", "none", "-c", touch))
	fails("the home", "is no project: a sandbox would show all files in it", m.command(m.root, "exec", "-c", touch))
	broken := m.command(m.project("two"), "exec", "-c", touch)
	broken.Env = append(broken.Env, "SESSION_IDLE_TIMEOUT=never")
	fails("a wrong setting", "the server did not start: SESSION_IDLE_TIMEOUT", broken)
	nowhere := m.command(one, "exec", "-c", touch)
	nowhere.Env = append(nowhere.Env, "XDG_RUNTIME_DIR=/proc", "XDG_STATE_HOME=/proc")
	fails("no folder for sockets", "no server can be reached", nowhere)
	// A server that ends while a command runs.
	cmd := m.command(one, "exec", "-c", "echo ready; sleep 900; "+touch)
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	must.Get(out.Read(make([]byte, 16)))(t)
	for _, server := range m.servers() {
		must.Do(t, syscall.Kill(server.PID, syscall.SIGKILL))
	}
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 125 {
		t.Errorf("status %d", cmd.ProcessState.ExitCode())
	}
	if _, err := os.Lstat(canary); err == nil {
		t.Error("the command ran outside")
	}
	// The control: the next command runs, in a new server.
	m.want(one, "echo again", "again\n", "", 0)
}

// What a hook answers is one command with one text, whatever is in it, and everything else is refused.
func TestHook_Answers(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	hook := func(input string, args ...string) (string, string, int) {
		cmd := m.command(m.root, append([]string{"hook"}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		var out, log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &log
		_ = cmd.Run()
		return out.String(), log.String(), cmd.ProcessState.ExitCode()
	}
	for _, text := range []string{"ls", "echo 'it'\\''s' \"$x\" `y` $(z) \\", "a\nb\n", "'", "", "-c", "日本 \x01\x7f", "#!/bin/sh\ncat <<'E'\n'\"\nE\n", strings.Repeat("'", 20_000)} {
		input := string(must.Get(json.Marshal(map[string]any{"session_id": "a/../b'$(x)", "tool_name": "Bash", "tool_input": map[string]any{"command": text, "timeout": 5}}))(t))
		out, log, status := hook(input, "claude-code")
		var answer struct {
			HookSpecificOutput struct {
				PermissionDecision string
				UpdatedInput       struct {
					Command string
					Timeout int
				}
			}
		}
		if err := json.Unmarshal([]byte(out), &answer); err != nil || status != 0 {
			t.Fatalf("%.80q: %v, %q, %s, status %d", text, err, out, log, status)
		}
		line := answer.HookSpecificOutput.UpdatedInput.Command
		words := strings.Split(string(must.Get(exec.Command("sh", "-c", "printf '%s\\0' "+line).Output())(t)), "\x00")
		if len(words) != 8 || words[1] != "exec" || words[4] != "shell-abx" || words[6] != text || answer.HookSpecificOutput.UpdatedInput.Timeout != 5 {
			t.Errorf("%.80q: %.200q", text, words)
		}
		if answer.HookSpecificOutput.PermissionDecision != "" {
			t.Errorf("the user is not asked: %s", out)
		}
	}
	const bash = `{"tool_name":"Bash","tool_input":{"command":"ls"}}`
	for _, client := range []string{"codex", "claude-code"} {
		args := []string{client}
		if client != "codex" {
			args = append(args, "--allow")
		}
		if out, _, _ := hook(bash, args...); !strings.Contains(out, `"permissionDecision":"allow"`) {
			t.Errorf("%s: %s", client, out)
		}
	}
	for input, args := range map[string][]string{
		"": {"claude-code"}, `{"tool_name":"PowerShell","tool_input":{"command":"ls"}}`: {"claude-code"}, `{"tool_name":"Read","tool_input":{"path":"/x"}}`: {"claude-code"}, "{": {"codex"}, `{"tool_name":"Bash"}`: {"claude-code"}, `{"tool_name":"Bash","tool_input":{"command":5}}`: {"gemini-cli"},
		`[]`: {"claude-code"}, "null": {"opencode"}, bash: {"nobody"}, bash + " ": {}, bash + "  ": {"claude-code", "codex"}, bash + "   ": {"claude-code", "--wrong"},
		`{"tool_name":"Bash","tool_input":{"command":"a\u0000b"}}`:                                    {"codex"},
		fmt.Sprintf(`{"tool_name":"Bash","tool_input":{"command":%q}}`, strings.Repeat("x", 200_000)): {"claude-code"},
	} {
		if out, log, status := hook(input, args...); status != 2 || out != "" || log == "" {
			t.Errorf("%v of %.60q: %q, %q, status %d", args, input, out, log, status)
		}
	}
}

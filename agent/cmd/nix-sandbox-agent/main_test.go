package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/jailtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

func TestMain(m *testing.M) { os.Exit(jailtest.Main(m)) }

// arguments replaces @NAME by the driver and the command line of that
// interpreter, and @NAME=COMMAND by its driver and that command. folders are
// those of the drivers.
func arguments(t *testing.T, given []string) (args, folders []string) {
	t.Helper()
	for _, arg := range given {
		name, found := strings.CutPrefix(arg, "@")
		if !found {
			args = append(args, arg)
			continue
		}
		name, other, replaced := strings.Cut(name, "=")
		folder, command := agenttest.Driver(t, name)
		if replaced {
			command = []string{other}
		}
		args = append(append(args, "--driver", folder), command...)
		folders = append(folders, folder)
	}
	return args, folders
}

func agentCommand(t *testing.T, given ...string) *exec.Cmd {
	t.Helper()
	args, _ := arguments(t, given)
	cmd := exec.Command(jailtest.Agent(t), args...)
	cmd.Dir = t.TempDir()
	return cmd
}

// jailed is the agent as the first process of a sandbox.
func jailed(t *testing.T, given ...string) *exec.Cmd {
	t.Helper()
	args, folders := arguments(t, given)
	return exec.Command(jailtest.Sandbox{Args: args, Folders: folders}.Write(t))
}

func TestRun_IsTheProgram(t *testing.T) {
	for name, test := range map[string]struct {
		args   string
		code   string
		stdout string
		stderr string // a part
		status int
	}{
		"python":       {"@python", "print('hello')\n1 + 1", "hello\n2\n", "", 0},
		"python error": {"@python", "1 / 0", "", "ZeroDivisionError", 1},
		"python exit":  {"@python", "raise SystemExit(3)", "", "", 3},
		"bash":         {"@bash", "echo a; echo b >&2; exit 4", "a\n", "b\n", 4},
		"bash signal":  {"@bash", "kill -9 $$", "", "", 137},
		"node":         {"@node", "console.log(1); process.exit(5)", "1\n", "", 5},
		"argument":     {"/bin/sh -c", "echo \"$0\"; exit 6", "/bin/sh\n", "", 6},
		"pipe":         {"--pipe /bin/sh", "echo a\nexit 7", "a\n", "", 7},
		"empty":        {"@python", "", "", "", 0},
		"no stdin":     {"@bash", "cat; echo end", "end\n", "", 0},
		"missing":      {"@python=/nowhere/python3", "1", "", "nix-sandbox-agent: error: interpreter /nowhere/python3", 125},
		"broken":       {"@python=false", "1", "", "nix-sandbox-agent: error: interpreter false", 125},
		"large":        {"@bash", "x='" + strings.Repeat("x", 1<<20) + "'; echo ${#x}", "1048576\n", "", 0},
	} {
		for _, place := range []string{"jail", "host"} {
			t.Run(name+"/"+place, func(t *testing.T) {
				t.Parallel()
				args := append([]string{"run"}, strings.Fields(test.args)...)
				cmd := agentCommand(t, args...)
				if place == "jail" {
					cmd = jailed(t, args...)
				}
				var stdout, stderr bytes.Buffer
				cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(test.code), &stdout, &stderr
				_ = cmd.Run()
				if stdout.String() != test.stdout || !strings.Contains(stderr.String(), test.stderr) ||
					test.stderr == "" && stderr.Len() > 0 || cmd.ProcessState.ExitCode() != test.status {
					t.Errorf("stdout %q, stderr %q, status %d", &stdout, &stderr, cmd.ProcessState.ExitCode())
				}
			})
		}
	}
}

func TestRun_PassesSignalsOn(t *testing.T) {
	for code, want := range map[string]int{
		"echo ready; sleep 99": 143,
		"trap 'echo got it; exit 3' TERM; echo ready; while :; do sleep 0.1; done": 3,
		"trap '' TERM; echo ready; while :; do sleep 0.1; done":                    137,
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			cmd := agentCommand(t, "run", "@bash")
			cmd.Stdin = strings.NewReader(code)
			out := must.Get(cmd.StdoutPipe())(t)
			must.Do(t, cmd.Start())
			var ready [6]byte
			if _, err := out.Read(ready[:]); err != nil {
				t.Fatal(err)
			}
			must.Do(t, cmd.Process.Signal(unix.SIGTERM))
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != want {
				t.Errorf("status %d, want %d", got, want)
			}
		})
	}
}

// A signal ends run also while it waits for code.
func TestRun_EndsWithoutCode(t *testing.T) {
	cmd := agentCommand(t, "run", "@bash")
	stdin := must.Get(cmd.StdinPipe())(t)
	defer stdin.Close()
	must.Do(t, cmd.Start())
	for cmd.ProcessState == nil {
		// It may not listen yet: then the signal ends it just so.
		time.Sleep(200 * time.Millisecond)
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
	}
	if got := cmd.ProcessState.ExitCode(); got != 143 && got != -1 {
		t.Errorf("status %d, want 143", got)
	}
}

// A signal also ends run while its interpreter loads.
func TestRun_EndsWhileItsInterpreterLoads(t *testing.T) {
	cmd := agentCommand(t, "run", "@python=sh", "-c", "echo loading; exec sleep 99", "sh")
	cmd.Stdin = strings.NewReader("1")
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	end := time.AfterFunc(patience.Long, func() { _ = cmd.Process.Kill() })
	defer end.Stop()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	must.Do(t, cmd.Process.Signal(unix.SIGTERM))
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 143 {
		t.Errorf("status %d, want 143", got)
	}
}

func TestUsage_IsPartOfTheError(t *testing.T) {
	for _, args := range []string{"", "run", "run --pipe", "dance @python", "run --driver", "run --both python3"} {
		out, err := agentCommand(t, strings.Fields(args)...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != failed || !strings.HasPrefix(string(out), "nix-sandbox-agent: error: ") || !strings.Contains(string(out), "usage: ") {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}

// What Nix has an interpreter compile is used; where it is of another version,
// the driver's text is.
func TestCompiledDriver(t *testing.T) {
	for _, name := range agenttest.Interpreters(t) {
		t.Run(name, func(t *testing.T) {
			text := must.Get(os.ReadFile(filepath.Join(agenttest.Folder(t, name), "interpreter.json")))(t)
			var known struct {
				Compile struct {
					Program   string
					Arguments []string
				}
				Driver   map[string]any
				Language struct{ Probe string }
			}
			must.Do(t, json.Unmarshal(text, &known))
			if known.Compile.Program == "" {
				t.Skip("nothing is compiled")
			}
			folder, command := agenttest.Driver(t, name)
			source := filepath.Join(folder, known.Driver["program"].(string))
			compiled := filepath.Join(folder, known.Compile.Program)
			args := append(append(command[1:len(command):len(command)], known.Compile.Arguments...), source, compiled)
			if out, err := exec.Command(command[0], args...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			known.Driver["program"] = known.Compile.Program
			text = must.Get(json.Marshal(known.Driver))(t)
			run := func() string {
				cmd := agentCommand(t, append([]string{"run", "--driver", folder}, command...)...)
				cmd.Stdin = strings.NewReader(known.Language.Probe)
				out, _ := cmd.CombinedOutput()
				return string(out)
			}
			write := func(path string, text []byte) {
				t.Helper()
				must.Do(t, os.WriteFile(path, text, 0o644))
			}
			code := must.Get(os.ReadFile(compiled))(t)
			write(filepath.Join(folder, "driver.json"), text)
			original := must.Get(os.ReadFile(source))(t)
			// Without its text, only the compiled driver can have run.
			os.Remove(source)
			if got := run(); got != "42\n" {
				t.Errorf("compiled: %q", got)
			}
			write(compiled, append([]byte("\xff\xff\xff\xff"), code[4:]...))
			if got := run(); got == "42\n" {
				t.Error("control: it runs without its text and of another version")
			}
			write(source, original)
			if got := run(); got != "42\n" {
				t.Errorf("of another version: %q", got)
			}
		})
	}
}

// session is a serving agent that is pid 1 of its namespace.
type session struct {
	t   *testing.T
	pid int // of the sandbox's first process on the host
	out *frame.Writer
	in  *frame.Reader
	id  uint64
}

func serve(t *testing.T, args ...string) *session {
	t.Helper()
	cmd := jailed(t, append([]string{"serve"}, args...)...)
	stdin := must.Get(cmd.StdinPipe())(t)
	stdout := must.Get(cmd.StdoutPipe())(t)
	var log bytes.Buffer
	cmd.Stderr = &log
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		end := time.AfterFunc(patience.Long, func() {
			t.Error("the sandbox does not end")
			_ = cmd.Process.Kill()
		})
		defer end.Stop()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the agent ended with %v: %s", err, &log)
		}
	})
	s := &session{t: t, pid: cmd.Process.Pid, out: frame.NewWriter(stdin), in: frame.NewReader(stdout)}
	var ready frame.Reply
	if err := s.in.Read(&ready); err != nil || ready.Type != frame.Ready {
		t.Fatalf("%+v, %v, %s", ready, err, &log)
	}
	return s
}

func (s *session) run(code string, change ...func(*frame.Request)) (stdout string, result frame.Reply) {
	s.t.Helper()
	s.id++
	request := frame.Request{
		Type: frame.Execute, ID: s.id, Code: code, Keep: true,
		TimeoutMS: patience.Long.Milliseconds(), GraceMS: patience.Long.Milliseconds(),
	}
	for _, f := range change {
		f(&request)
	}
	must.Do(s.t, s.out.Write(request))
	for {
		var r frame.Reply
		must.Do(s.t, s.in.Read(&r))
		switch {
		case r.Type == frame.Output && r.Stream == frame.Stdout:
			stdout += r.Data
		case r.Type == frame.Result:
			return stdout, r
		}
	}
}

// others counts the processes beside the agent and the interpreter.
const others = "n=0; for p in /proc/[0-9]*; do p=${p#/proc/}; ((p == 1 || p == $$)) || n=$((n + 1)); done; echo $n"

// As init, the agent is out of reach for the code of the same user.
func TestAgentIsOutOfReach(t *testing.T) {
	s := serve(t, "@python")
	got, _ := s.run(`
import os, ctypes
for name in ('environ', 'mem', 'maps', 'fd/0', 'fd/1', 'cwd', 'root', 'exe'):
    try:
        os.close(os.open('/proc/1/' + name, os.O_RDONLY)); print('opened', name)
    except OSError: pass
import signal, struct
libc = ctypes.CDLL(None, use_errno=True)
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError as error: print(error)
    # The same with SI_QUEUE, which Go does not take for a user's.
    info = struct.pack('iii', number, 0, -1) + bytes(116)
    if number < 32: libc.syscall(129, 1, number, info)
print(ctypes.CDLL(None, use_errno=True).ptrace(16, 1, 0, 0))
`)
	if got != "-1\n" {
		t.Errorf("stdout %q", got)
	}
}

// Whatever escapes the interpreter's group ends with it when it is killed.
func TestKillReachesEverything(t *testing.T) {
	var s *session
	agenttest.Longer(t, func(limit time.Duration) error {
		s = serve(t, "@bash")
		got, r := s.run("for n in 1 2 3; do setsid bash -c \"trap '' INT TERM; while :; do sleep 1; done\" & done; trap '' INT; echo ready; while :; do sleep 1; done", agenttest.Limit(limit, 300*time.Millisecond))
		if r.Outcome != frame.OutcomeTimeout || r.State != frame.StateLost || got != "ready\n" {
			return fmt.Errorf("%q, %+v", got, r)
		}
		return nil
	})
	if got, _ := s.run(others); got != "0\n" {
		t.Errorf("%s processes are left", got)
	}
}

func TestEphemeralLeavesNothing(t *testing.T) {
	s := serve(t, "@bash")
	if got, r := s.run("setsid sleep 99 & sleep 99 & echo hi", agenttest.Ephemeral); got != "hi\n" || r.Outcome != frame.OutcomeOK {
		t.Errorf("%q, %+v", got, r)
	}
	if got, _ := s.run(others, agenttest.Ephemeral); got != "0\n" {
		t.Errorf("%s processes are left", got)
	}
}

// Processes that lost their parents are reaped, and jobs survive an interrupt.
func TestAgent_ReapsOrphansAndKeepsJobs(t *testing.T) {
	s := serve(t, "@bash")
	s.run("for n in {1..20}; do (setsid sh -c 'exit 0' &); done; sleep 60 & job=$!")
	if _, r := s.run("sleep 99", agenttest.Limit(500*time.Millisecond, agenttest.Grace)); r.Outcome != frame.OutcomeTimeout || r.State != frame.StateKept {
		t.Errorf("%+v", r)
	}
	if got, _ := s.run("kill -0 $job && echo there; " + others); got != "there\n1\n" {
		t.Errorf("stdout %q", got)
	}
}

func TestCode_CannotKillTheAgent(t *testing.T) {
	for _, code := range []string{"kill -9 -1", "kill -9 1; kill -9 -1; kill -9 $$", ":(){ :|:& };: & sleep 0.2; kill -9 -1"} {
		s := serve(t, "@bash")
		if strings.Contains(code, ":|:") {
			code = "ulimit -u 200; " + code
		}
		s.run(code, agenttest.Limit(3*time.Second, 300*time.Millisecond))
		s.run("kill -9 $$", agenttest.Limit(3*time.Second, 300*time.Millisecond))
		if got, r := s.run("echo alive"); got != "alive\n" {
			t.Errorf("%s: %q, %+v", code, got, r)
		}
	}
}

// An idle agent is small and does nothing.
func BenchmarkStart(b *testing.B) {
	path := jailtest.Agent(b)
	for b.Loop() {
		must.Do(b, exec.Command(path, "run", "--pipe", "true").Run())
	}
}

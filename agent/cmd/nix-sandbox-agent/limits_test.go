package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Limits of these tests. Code bounds itself as well: at twice the memory, and
// at this many processes that end soon by themselves.
const (
	memoryMB = "96"
	tasks    = "40"
)

var limited = []string{"--memory-mb", memoryMB, "--pids", tasks}

// hog takes and touches MiB of memory, one after the other.
func hog(mib int) string {
	return fmt.Sprintf("b = []\nfor n in range(%d): b.append(bytearray(b'x') * (1 << 20))\nprint(len(b))", mib)
}

// crowd starts processes that end by themselves, and counts them.
func crowd(n int) string {
	return fmt.Sprintf("n=0; while ((n < %d)); do sleep 3 & n=$((n + 1)); done 2>/dev/null; kill $(jobs -p) 2>/dev/null; wait; echo $n", n)
}

func TestRun_StopsAtLimits(t *testing.T) {
	for name, test := range map[string]struct {
		args, code string
		stdout     string
		stderr     string // its end
		status     int
	}{
		"memory":        {"@python", hog(192), "", "nix-sandbox-agent: stopped: used more than 96 MB of memory\n", 137},
		"memory below":  {"@python", hog(48), "48\n", "", 0},
		"command":       {"python3 -c", hog(192), "", "nix-sandbox-agent: stopped: used more than 96 MB of memory\n", 137},
		"command below": {"python3 -c", hog(48), "48\n", "", 0},
		"files":         {"@bash", "head -c 192M /dev/zero > x; echo wrote", "", "nix-sandbox-agent: stopped: used more than 96 MB of memory\n", 137},
		"names":         {"@bash", "seq 1 130000 | xargs touch; echo made", "", "nix-sandbox-agent: stopped: used more than 96 MB of memory\n", 137},
		"names below":   {"@bash", "seq 1 10000 | xargs touch; echo made", "made\n", "", 0},
		"files below":   {"@bash", "head -c 48M /dev/zero > x; echo wrote", "wrote\n", "", 0},
		"tasks below":   {"@bash", crowd(20), "20\n", "", 0},
		"rlimits":       {"bash -c", "ulimit -c; ulimit -Sn; ulimit -Hn", "0\n1024\n4096\n", "", 0},
		"rlimits too":   {"@bash", "ulimit -c; ulimit -Sn; ulimit -Hn", "0\n1024\n4096\n", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			args := append(append([]string{"run"}, limited...), strings.Fields(test.args)...)
			cmd := jailed(t, args...)
			var stdout, stderr bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(test.code), &stdout, &stderr
			_ = cmd.Run()
			if stdout.String() != test.stdout || !strings.HasSuffix(stderr.String(), test.stderr) ||
				test.stderr == "" && stderr.Len() > 0 || cmd.ProcessState.ExitCode() != test.status {
				t.Errorf("stdout %q, stderr %q, status %d", &stdout, &stderr, cmd.ProcessState.ExitCode())
			}
		})
	}
}

// The kernel refuses so many processes. Where it does not (it does not count those
// of the machine's root), the limit keeper ends them.
func TestRun_StopsTooManyTasks(t *testing.T) {
	cmd := jailed(t, append(append([]string{"run"}, limited...), "@python")...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(`
import os, time
for n in range(400):
    try:
        if os.fork() == 0: time.sleep(600)
    except BlockingIOError:
        os.write(1, b'refused')
        os._exit(0)
os.write(1, b'started all')
`), &stdout, &stderr
	_ = cmd.Run()
	refused := cmd.ProcessState.ExitCode() == 0 && stdout.String() == "refused" && stderr.Len() == 0
	stopped := cmd.ProcessState.ExitCode() == 137 && strings.HasSuffix(stderr.String(), "nix-sandbox-agent: stopped: more than 40 processes and threads\n")
	if !refused && !stopped {
		t.Errorf("stdout %q, stderr %q, status %d", &stdout, &stderr, cmd.ProcessState.ExitCode())
	}
}

func TestSessionSurvivesALimit(t *testing.T) {
	s := serve(t, append(limited, "@python")...)
	s.run("x = 1; open('file', 'w').write('kept')")
	_, r := s.run(hog(192))
	if r.Outcome != frame.OutcomeMemory || r.State != frame.StateLost || r.ExitCode != 137 {
		t.Errorf("%+v", r)
	}
	if l := r.Limit; l == nil || l.Name != "memory_mb" || l.Value != 96 || l.Used <= 96 || l.Used > 192 {
		t.Errorf("limit %+v", l)
	}
	got, r := s.run("print(open('file').read(), 'x' in globals())")
	if got != "kept False\n" || r.Outcome != frame.OutcomeOK || r.State != frame.StateKept || r.Limit != nil {
		t.Errorf("%q, %+v", got, r)
	}
	if got, r := s.run(hog(32)); got != "32\n" || r.Outcome != frame.OutcomeOK {
		t.Errorf("%q, %+v", got, r)
	}
}

// What a call left running crosses a limit after it: the next call is told.
func TestLimitBetweenTwoCalls(t *testing.T) {
	s := serve(t, append(limited, "@python")...)
	s.run("x = 1")
	s.run("import subprocess, sys; subprocess.Popen([sys.executable, '-c', '''import time; time.sleep(0.5)\n" + hog(192) + "\ntime.sleep(600)'''])")
	// The limit keeper acts between the calls: the agent reports it with the next.
	patience.Until(t, "the limit keeper ends what crossed a limit", func() bool {
		return !slices.ContainsFunc(procfs.Descendants(s.pid), func(pid int) bool {
			process, err := procfs.Read(pid)
			return err == nil && strings.Contains(process.Command(), "time.sleep(600)")
		})
	})
	// Its code can still be given to the interpreter that is being ended.
	got, r := s.run("print('x' in globals())")
	between, ended := got == "False\n" && r.Outcome == frame.OutcomeOK, got == "" && r.Outcome == frame.OutcomeMemory
	if !between && !ended || r.State != frame.StateLost || r.Limit == nil || r.Limit.Name != "memory_mb" {
		t.Errorf("%q, %+v, limit %+v", got, r, r.Limit)
	}
}

// Files outlive what is killed: where they alone are too much, the sandbox
// ends, and says why.
func TestFilesAboveTheLimitEndTheSandbox(t *testing.T) {
	cmd := jailed(t, append(append([]string{"serve"}, limited...), "@bash")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin := must.Get(cmd.StdinPipe())(t)
	defer stdin.Close()
	stdout := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	end := time.AfterFunc(patience.Long, func() { _ = cmd.Process.Kill() })
	defer end.Stop()
	if err := frame.NewWriter(stdin).Write(frame.Request{
		Type: frame.Execute, ID: 1, Code: "head -c 192M /dev/zero > x; echo wrote", TimeoutMS: patience.Long.Milliseconds(), Keep: true,
	}); err != nil {
		t.Fatal(err)
	}
	var last frame.Reply
	for frames := frame.NewReader(stdout); ; {
		var r frame.Reply
		if frames.Read(&r) != nil {
			break
		}
		last = r
	}
	_ = cmd.Wait()
	if last.Type != frame.Ready || cmd.ProcessState.ExitCode() != failed ||
		!strings.Contains(stderr.String(), "nix-sandbox-agent: error: used more than 96 MB of memory: files in /workspace") {
		t.Errorf("last reply %+v, status %d, stderr %q", last, cmd.ProcessState.ExitCode(), &stderr)
	}
}

func TestLimitsTooSmallForTheInterpreter(t *testing.T) {
	cmd := jailed(t, "run", "--memory-mb", "2", "@python")
	cmd.Stdin = strings.NewReader("import time; time.sleep(5); print('ran')")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "stopped: used more than 2 MB of memory") || strings.Contains(string(out), "ran") {
		t.Errorf("%v, %s", err, out)
	}
}

func TestParse_RefusesLimits(t *testing.T) {
	for args, want := range map[string]string{
		"run --memory-mb x @python": "memory-mb",
		"run --cpus 1 @bash":        "cpus",
		"run --pids 3 @bash":        "not the first of a sandbox",
		"serve --memory-mb 9 @bash": "not the first of a sandbox",
		"exec --pids 3":             `unknown mode "exec"`,
	} {
		out, err := agentCommand(t, strings.Fields(args)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s", args, err, out)
		}
	}
}

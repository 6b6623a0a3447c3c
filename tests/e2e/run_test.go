package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// What code writes, by whatever way, is in the answer.
func TestRun_AnswersWhatCodeWrites(t *testing.T) {
	c := start(t)
	for name, test := range map[string]struct {
		env, code string
		want      string
		failed    bool
	}{
		"python":                    {"python", "print(1+1)", "2\n", false},
		"bash":                      {"bash", "echo hi", "hi\n", false},
		"node":                      {"node", "console.log(1)", "1\n", false},
		"python works in workspace": {"python", "import os; print(os.getcwd(), os.environ['HOME'], os.environ['TMPDIR'])", "/workspace /workspace /workspace\n", false},
		"bash works in workspace":   {"bash", "pwd", "/workspace\n", false},
		"node works in workspace":   {"node", "console.log(process.cwd())", "/workspace\n", false},
		"python, empty":             {"python", "", "[no output]", false},
		"bash, empty":               {"bash", "", "[no output]", false},
		"node, empty":               {"node", "", "[no output]", false},
		"stderr":                    {"bash", "echo out; echo err >&2", "out\n--- stderr ---\nerr\n", false},
		"exit status":               {"bash", "echo a; exit 3", "a\n[exit status 3]", true},
		"python's exit":             {"python", "import sys; print('a'); sys.exit(4)", "a\n[exit status 4]", true},
		"node's exit":               {"node", "process.exit(5)", "[exit status 5]", true},
		"a subprocess":              {"python", "import subprocess; subprocess.run(['echo', 'from a child']); None", "from a child\n", false},
		"a descriptor":              {"python", "import os; os.write(1, b'raw\\n'); None", "raw\n", false},
		"a C extension":             {"python", "import ctypes; libc = ctypes.CDLL(None); libc.puts(b'from C'); libc.fflush(None); None", "from C\n", false},
		"no shell around code":      {"python", "print('$HOME `id` \"; rm -rf /')", "$HOME `id` \"; rm -rf /\n", false},
		"unicode":                   {"python", "print('grüße \U0001F600')", "grüße \U0001F600\n", false},
		"not UTF-8":                 {"bash", `printf 'a\377b'`, "a\uFFFDb", false},
		"stdin is empty":            {"bash", "cat; echo end", "end\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			answer := run(c, test.env, test.code)
			if answer.Text() != test.want || answer.IsError != test.failed {
				t.Errorf("answer %+v, want %q", answer, test.want)
			}
		})
	}
}

func TestRun_AnswersTraceback(t *testing.T) {
	answer := run(start(t), "python", "def f():\n    raise ValueError('x')\nf()")
	for _, want := range []string{"--- stderr ---\nTraceback (most recent call last):", "in f", "ValueError: x", "[exit status 1]"} {
		if !answer.IsError || !strings.Contains(answer.Text(), want) {
			t.Errorf("answer %+v lacks %q", answer, want)
		}
	}
}

func TestRun_TellsFacts(t *testing.T) {
	answer := run(start(t), "bash", "exit 3")
	if answer.Fact("exit_code") != 3.0 || answer.Fact("outcome") != "failed" || answer.Fact("truncated") != false {
		t.Errorf("facts %v", answer.Meta)
	}
	if hash, _ := answer.Fact("code_sha256").(string); len(hash) != 64 {
		t.Errorf("facts %v", answer.Meta)
	}
	if want := environments(t)["bash"]["closure"]; want != nil && answer.Fact("closure") != want {
		t.Errorf("closure %v, want %v", answer.Fact("closure"), want)
	}
}

// Each call without a session is in a sandbox of its own.
func TestRun_StartsFreshSandbox(t *testing.T) {
	c := start(t)
	run(c, "bash", "echo mine >/workspace/file; echo mine >/tmp/file")
	if answer := run(c, "bash", "ls -A /workspace /tmp"); strings.Contains(answer.Text(), "file") {
		t.Errorf("answer %+v", answer)
	}
}

// A call that takes too long is answered at its limit, and nothing of it is
// left, whatever it did to stay.
func TestRun_EndsAtTimeLimit(t *testing.T) {
	t.Parallel()
	c := start(t, tightened(t, map[string]any{"timeout_seconds": 2, "max_timeout_seconds": 60}))
	// A child that calls setsid, ignores what can be ignored and stays.
	const leaver = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import signal, time\\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\\ntime.sleep(999)', 'MARK'], start_new_session=True)\n"
	for name, test := range map[string]struct{ env, code string }{
		"sleep":                    {"bash", "sleep MARK"},
		"a job of its own group":   {"bash", "set -m; trap '' TERM HUP INT; bash -c \"trap '' TERM HUP INT; sleep MARK\" & sleep MARK"},
		"a session of its own":     {"python", leaver + "time.sleep(999)"},
		"python that ignores it":   {"python", "import signal\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\n" + leaver + "while True: time.sleep(1)"},
		"node that never comes up": {"node", "require('child_process').spawn('sleep', ['MARK'], {detached: true}); while (true) {}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mark := seconds()
			// A busy machine may take longer than the limit until the code has started
			// what it leaves.
			for limit := 2.0; ; limit *= 2 {
				id := c.SendRun(mcptest.Arguments{Code: strings.ReplaceAll(test.code, "MARK", mark), Env: test.env, Timeout: limit})
				runs := false
				patience.Until(t, "the code runs, or its time is over", func() bool {
					runs = runs || len(procfs.WithCommand(mark)) > 0
					return runs || c.Answered(id)
				})
				answer := c.AwaitRun(id)
				expectError(t, answer, fmt.Sprintf("[timed out after %v s]", limit))
				if took, _ := answer.Fact("duration_ms").(float64); took < 1000*limit {
					t.Errorf("it took %v ms", took)
				}
				if runs {
					break
				}
				if limit > 20 {
					t.Fatalf("the code did not run within %v s", limit)
				}
			}
			patience.Gone(t, procfs.WithCommand(mark)...)
		})
	}
}

// A call may ask for more time than the usual, or for less, in a session and without
// one, in both eras of the protocol.
func TestRun_AsksForTime(t *testing.T) {
	t.Parallel()
	variable := tightened(t, map[string]any{"timeout_seconds": 1, "max_timeout_seconds": 60})
	for _, version := range []string{mcptest.Newest, mcptest.Stateless} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := mcptest.Start(t, command(t, variable))
			c.Initialize(version)
			expectError(t, run(c, "bash", "sleep 5"), "[timed out after 1 s]\n[hint: with timeout a call may run up to 60 s]")
			for _, session := range []string{"", "s"} {
				ask := func(seconds float64, code string) mcptest.Answer {
					return c.Run(mcptest.Arguments{Code: code, Env: "bash", Session: session, Timeout: seconds})
				}
				expect(t, ask(60, "sleep 2; echo done"), "done\n")
				expectError(t, ask(0.5, "sleep 5"), "[timed out after 0.5 s")
				expectError(t, ask(61, "echo never"), `timeout is 61, more than env "bash" allows, whose max_timeout_seconds is 60`)
			}
			// The second one waits longer than it may run.
			first := c.SendRun(mcptest.Arguments{Code: "sleep 6; echo first", Env: "bash", Session: "q", Timeout: 60})
			second := c.SendRun(mcptest.Arguments{Code: "echo second", Env: "bash", Session: "q", Timeout: 5})
			expect(t, c.AwaitRun(first), "first\n")
			expect(t, c.AwaitRun(second), "second\n")
		})
	}
}

// 20 calls run at the same time, do not mix, and leave nothing.
func TestRun_TwentyAtOnce(t *testing.T) {
	const calls = 20
	c := start(t, unpooled(t))
	run(c, "bash", ":") // what is opened once is open
	patience.Until(t, "the first sandbox ends", func() bool {
		return len(procfs.Descendants(c.PID())) == 0
	})
	before := c.Descriptors()
	mark := seconds()
	var ids []string
	for i := range calls {
		ids = append(ids, c.SendRun(mcptest.Arguments{Code: fmt.Sprintf("{ sleep %s; } 2>/dev/null; echo number-%d; echo error-%d >&2", mark, i, i), Env: "bash"}))
	}
	together(t, calls, mark)
	for i, id := range ids {
		expect(t, c.AwaitRun(id), fmt.Sprintf("number-%d\n--- stderr ---\nerror-%d\n", i, i))
	}
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("processes left: %v", procfs.Descendants(c.PID())) }, func() bool {
		return len(procfs.Descendants(c.PID())) == 0
	})
	patience.Wait(t, patience.Long, func() string {
		return fmt.Sprintf("%d descriptors before, %d after", before, c.Descriptors())
	}, func() bool { return c.Descriptors() <= before })
}

// Nothing is left in the server's temporary folder.
func TestServer_LeavesNoTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	c := start(t, "TMPDIR="+dir)
	run(c, "python", "open('a', 'w').write('x' * 100000)")
	in(c, "s", "bash", "seq 100000")
	c.CloseInput()
	c.Wait(10 * time.Second)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// 100 MB of output become an answer within output_kb that says what is cut;
// the server does not grow.
func TestRun_CutsLargeOutput(t *testing.T) {
	c := start(t)
	limit := 32 << 10
	if kb, ok := environments(t)["bash"]["output_kb"].(float64); ok {
		limit = int(kb) << 10
	}
	for name, code := range map[string]string{
		"stdout":   "echo begin; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo end",
		"stderr":   "{ echo begin; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo end; } >&2",
		"not text": "head -c 100000000 /dev/urandom",
	} {
		answer := run(c, "bash", code)
		if answer.IsError || len(answer.Text()) > limit+500 {
			t.Errorf("%s: %d bytes, error %v", name, len(answer.Text()), answer.IsError)
		}
		cut := regexp.MustCompile(`\[(100\.0|99\.9) MB of output cut; `)
		if name == "not text" { // with carriage returns that write over a part of it
			cut = regexp.MustCompile(`\[[0-9.]+ MB of output cut; `)
		}
		if !cut.MatchString(answer.Text()) || answer.Fact("truncated") != true {
			t.Errorf("%s: it does not say what was cut: %q", name, answer.Text()[max(0, len(answer.Text())-300):])
		}
		if name != "not text" && (!strings.Contains(answer.Text(), "begin\nxxx") || !strings.Contains(answer.Text(), "xxx\nend\n")) {
			t.Errorf("%s: head or tail is missing", name)
		}
	}
	if peak := c.PeakMemory(); peak >= 64<<20 {
		t.Errorf("the server used %d MiB", peak>>20)
	}
}

// kill -9 of the server takes every sandbox with it.
func TestServer_KilledTakesSandboxesAlong(t *testing.T) {
	c := start(t)
	in(c, "idle", "python", "x = 1")
	c.SendRun(mcptest.Arguments{Code: "trap '' TERM HUP INT; set -m; sleep 999 & sleep 999", Env: "bash"})
	c.SendRun(mcptest.Arguments{Code: "while(true){}", Env: "node", Session: "busy"})
	alive := busy(t, c, 3)
	c.Signal(syscall.SIGKILL)
	patience.Gone(t, alive...)
}

// busy waits until at least n sandboxes run and returns their processes.
func busy(t *testing.T, c *mcptest.Client, n int) []int {
	t.Helper()
	var alive []int
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("%d processes only", len(alive)) }, func() bool {
		alive = procfs.Descendants(c.PID())
		return len(alive) >= 3*n // jail, agent, interpreter
	})
	return alive
}

// SIGTERM ends the server with status 0 and everything that runs.
func TestServer_EndsAtSignal(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		c := start(t)
		in(c, "idle", "python", "x = 1")
		c.SendRun(mcptest.Arguments{Code: "trap '' TERM HUP INT; set -m; sleep 999 & sleep 999", Env: "bash"})
		alive := busy(t, c, 2)
		c.Signal(signal)
		if status := c.Wait(3 * time.Second); status != 0 {
			t.Errorf("%v: status %d", signal, status)
		}
		patience.Gone(t, alive...)
	}
}

// A client that stops reading and goes away ends everything too.
func TestServer_EndsWithItsInput(t *testing.T) {
	c := start(t)
	in(c, "idle", "bash", ":")
	alive := busy(t, c, 1)
	c.CloseInput()
	if status := c.Wait(5 * time.Second); status != 0 {
		t.Errorf("status %d", status)
	}
	patience.Gone(t, alive...)
}

// A broken artifact or environment gives one clear error; the others are
// served. A broken metadata file as a whole keeps the server from starting.
func TestServer_ServesBesideBrokenParts(t *testing.T) {
	all := environments(t)
	all["broken"] = map[string]any{"backend": "jail", "exec": "/nowhere/run", "session_exec": "/nowhere/session-run"}
	folder := t.TempDir()
	file := filepath.Join(folder, "bad", "metadata.json")
	must.Write(t, file, `{"schema":1,"name":"bad","backend":"chroot"}`, 0o644)
	c := start(t, "NIX_SANDBOX_METADATA="+mcptest.Metadata(t, all), "NIX_SANDBOX_DIR="+folder)
	expect(t, run(c, "bash", "echo served"), "served\n")
	for _, env := range []string{"broken", "bad"} {
		expectError(t, run(c, env, "1"), fmt.Sprintf("env %q could not be loaded", env))
	}
	for _, want := range []string{"environments.broken.exec is /nowhere/run, which does not exist", file + ": exec is " + filepath.Join(folder, "bad", "bin", "run") + ", which does not exist"} {
		if got := strings.Count(c.Log(), want); got != 1 {
			t.Errorf("the log has %d times %s:\n%s", got, want, c.Log())
		}
	}

	expectRefusal(t, command(t, "NIX_SANDBOX_METADATA="+file),
		"nix-sandbox-mcp: error: "+file+": environments is missing\n"+
			"nix-sandbox-mcp: hint: unset NIX_SANDBOX_METADATA to serve what the server was built with, or build the server again\n")
}

// An artifact in the operator's folder takes the place of a bundled one.
func TestServer_FolderOverridesBundled(t *testing.T) {
	all := environments(t)
	folder := t.TempDir()
	artifact := filepath.Dir(filepath.Dir(all["bash"]["session_exec"].(string)))
	must.Do(t, os.Symlink(artifact, filepath.Join(folder, "mine")))
	c := start(t, "NIX_SANDBOX_DIR="+folder)
	expect(t, run(c, "bash", "echo mine"), "mine\n")
	if want := "environment overridden"; !strings.Contains(c.Log(), want) || !strings.Contains(c.Log(), filepath.Join(folder, "mine", "metadata.json")) {
		t.Errorf("the log lacks %q:\n%s", want, c.Log())
	}
}

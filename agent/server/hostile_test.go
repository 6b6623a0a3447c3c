package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

func plantState(t *testing.T, a *Agent) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(a.Root, "file"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func checkState(t *testing.T, a *Agent) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(a.Root, "file")); string(got) != "kept" {
		t.Errorf("file of the workspace: %q, %v", got, err)
	}
}

// Whatever the code does, its call is answered within its time, and the next
// call works. The answer may be that the interpreter died.
func TestHostile(t *testing.T) {
	for kind, tests := range map[string]map[string]string{
		"python": {
			"writes to all descriptors":    "import os\nfor n in range(256):\n    try: os.write(n, b'x' * 100 + b'\\n')\n    except OSError: pass",
			"closes all descriptors":       "import os\nos.closerange(0, 256)",
			"closes the control channel":   "import os\nos.close(3)",
			"closes the code file":         "import os\nos.close(4)",
			"replaces the control channel": "import os\nos.dup2(os.open('/dev/null', os.O_RDWR), 3)",
			"reads the control channel":    "import os\nif os.fork() == 0:\n    while os.read(3, 1): pass",
			"imitates the driver":          "import os\nos.write(3, b'done 0123456789abcdef 0\\n')",
			"imitates it well":             "import os, sys\nn = sys._getframe(3).f_locals.get('nonce') or sys._getframe(4).f_locals['nonce']\nos.write(3, b'done %s 7\\n' % n)",
			"is ready again":               "import os\nos.write(3, b'ready\\n')",
			"imitates it for ever":         "import os\nif os.fork() == 0:\n    try:\n        while True: os.write(3, b'done 0123456789abcdef 0\\n')\n    except OSError: os._exit(0)",
			"says half a line":             "import os\nos.write(3, b'don')",
			"imitates frames":              "import os\nos.write(1, b'\\0\\0\\0\\x0f{\"type\":\"pong\"}')",
			"exits":                        "import os\nos._exit(3)",
			"kills itself":                 "import os\nos.kill(os.getpid(), 9)",
			"kills its group":              "import os\nos.killpg(0, 9)",
			"aborts":                       "import os\nos.abort()",
			"segfaults":                    "import ctypes\nctypes.string_at(0)",
			"stops itself":                 "import os\nos.kill(os.getpid(), 19)",
			"children print later":         "import os, time\nif os.fork() == 0:\n    time.sleep(0.3)\n    os.write(1, b'late')\n    os._exit(0)",
			"replaces everything":          "import sys, os, builtins\nsys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None\nos.read = os.write = os._exit = None\nbuiltins.print = exit = quit = None\nsys.exit = None\nsys.modules.clear()",
			"breaks its own driver":        "import sys\nf = sys._getframe()\nwhile f:\n    if f.f_code.co_filename == '<driver>': f.f_globals.clear()\n    f = f.f_back",
			"deletes the workspace":        "import shutil, os\nfor n in os.listdir('.'): shutil.rmtree(n, True)",
			"never returns from SIGINT":    "import signal\nsignal.signal(2, lambda *a: exec('while True: pass'))\nwhile True: pass",
			"leaves threads":               "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f, daemon=True).start()",
			"changes the code file":        "import os\nos.truncate(4, 0); os.truncate(4, 1 << 40)",
			"makes pipes non-blocking":     "import os\nos.set_blocking(1, False); os.set_blocking(2, False)",
			"seals its memory":             "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\nx = []\ntry:\n    while True: x.append(bytearray(1 << 20))\nfinally: x.clear()",
			"has no descriptors left":      "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
			"traces":                       "import sys\nsys.settrace(lambda *a: 1 / 0)",
			"raises in its repr":           "class C:\n    def __repr__(self): raise SystemExit(5)\nC()",
			"raises what cannot be shown":  "class E(Exception):\n    def __str__(self): raise SystemExit(5)\nraise E",
		},
		"bash": {
			"writes to all descriptors":    "for n in {0..255}; do echo x >&$n; done 2>/dev/null",
			"closes all descriptors":       "for n in {0..255}; do eval \"exec $n>&-\"; done",
			"replaces the control channel": "exec 251<>/dev/null",
			"reads the control channel":    "cat <&251 & sleep 0.1",
			"imitates the driver":          "echo done 0123456789abcdef 0 >&251",
			"imitates it well":             "echo done $__agent_nonce 7 >&251",
			"leaves and stays":             "echo leave $__agent_nonce >&251",
			"writes noise":                 "head -c 100000 /dev/zero >&251 & sleep 0.2",
			"spoils its state":             "echo 'kill -9 $$' >&253; exit 3",
			"leaves a state that hangs":    "trap 'echo \"sleep 99\" >&253' EXIT; exit 3",
			"kills itself":                 "kill -9 $$",
			"kills its group":              "kill -9 0",
			"stops itself":                 "kill -STOP $$",
			"redefines":                    "eval() { :; }; exit() { :; }; exec() { :; }; trap() { :; }; set() { :; }; unset() { :; }",
			"redefines the driver":         "__agent_turn() { :; }",
			"takes builtins away":          "builtin() { :; }",
			"disables builtins":            "enable -n read printf builtin trap",
			"never ends its traps":         "trap 'while :; do :; done' EXIT; exit 1",
			"reads all there is":           "set -n",
			"makes variables fixed":        "readonly __agent_code __agent_nonce __agent_status IFS TMOUT",
			"unsets":                       "unset -f __agent_turn trap; unset PATH HOME",
			"forks children":               "for n in 1 2 3; do (sleep 0.3; echo late) & done",
			"ends in a trap":               "trap 'exit 5' DEBUG",
			"ends in a later trap":         "trap 'exit 5' USR1; (sleep 0.2; kill -USR1 $$) &",
			"deletes the workspace":        "rm -rf ./* ./.[!.]*",
			"is posix":                     "set -o posix; set -e; shopt -s extdebug",
			"has no descriptors left":      "ulimit -n 3",
		},
		"node": {
			"writes to all descriptors":    "for (let n = 0; n < 256; n++) try { require('fs').writeSync(n, 'x\\n') } catch {}",
			"closes all descriptors":       "for (let n = 0; n < 256; n++) try { require('fs').closeSync(n) } catch {}",
			"closes the control channel":   "require('fs').closeSync(3)",
			"imitates the driver":          "require('fs').writeSync(3, 'done 0123456789abcdef 0\\n')",
			"asks for interrupts":          "require('fs').writeSync(3, 'stop 0123456789abcdef\\n')",
			"aborts":                       "process.abort()",
			"kills itself":                 "process.kill(process.pid, 'SIGKILL')",
			"interrupts itself":            "process.kill(process.pid, 'SIGINT')",
			"exits for real":               "process.reallyExit(3)",
			"removes all listeners":        "process.removeAllListeners(); setTimeout(() => { throw 1 }, 50)",
			"replaces everything":          "for (const k of Reflect.ownKeys(globalThis)) if (k !== 'globalThis') try { globalThis[k] = null } catch {}",
			"spoils prototypes":            "for (const o of [Object, Array, String, Function, Promise, RegExp]) for (const k of Reflect.ownKeys(o.prototype)) try { o.prototype[k] = null } catch {}",
			"is out of memory":             "const a = []; for (;;) a.push(new Array(1e6).fill(1.5))",
			"spins in a promise":           "await 1; for (;;);",
			"spins in a timer":             "setTimeout(() => { for (;;); }, 10)",
			"rejects for ever":             "setInterval(() => Promise.reject(1), 5)",
			"breaks inspectors":            "const s = new (require('inspector').Session)(); s.connect(); s.post('Debugger.enable'); s.post('Debugger.pause')",
			"spoils what it is shown with": "require('util').inspect.defaultOptions.depth = -1; require('util').inspect = null; ({})",
			"cannot be shown":              "new Proxy({}, { get() { throw 1 }, ownKeys() { throw 1 } })",
			"deletes the workspace":        "require('fs').rmSync('.', { recursive: true, force: true })",
		},
	} {
		for name, code := range tests {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				a := Start(t, kind, Env("NODE_OPTIONS", "--max-old-space-size=64")).Warm()
				begin := time.Now()
				first := a.Run(code, Limit(2*time.Second, time.Second))
				if took := time.Since(begin); took > 15*time.Second {
					t.Errorf("answered after %v", took)
				}
				t.Logf("%s, state %s, exit status %d", first.Outcome, first.State, first.ExitCode)
				// The damage may show with a later call only, which then
				// says so; in the end two calls in a row must work.
				for good, calls := 0, 0; good < 2; calls++ {
					if calls == 6 {
						t.Fatal("no call works any more")
					}
					next := a.Run(state[kind].set, Limit(2*time.Second, time.Second))
					if next.Outcome == frame.OutcomeOK && next.ExitCode == 0 && next.State == frame.StateKept {
						good++
						continue
					}
					good = 0
					t.Logf("then %s, state %s, exit status %d", next.Outcome, next.State, next.ExitCode)
					if next.State == frame.StateKept {
						// The code asked for an interpreter that is
						// like this. It can still be ended.
						a.Run("kill -9 $$", Limit(time.Second, time.Second))
					}
				}
			})
		}
	}
}

// What speaks for the driver without the call's own number ends the
// interpreter: it neither ends the call, nor leaves state, nor has the code
// interrupted.
func TestForgedReplies(t *testing.T) {
	for kind, write := range map[string]string{
		"python": "import os; os.write(3, b'%s\\n')\n",
		"bash":   "echo %s >&251\n",
		"node":   "require('fs').writeSync(3, '%s\\n');",
	} {
		for _, reply := range []string{"done 0123456789abcdef 7", "leave 0123456789abcdef", "stop 0123456789abcdef"} {
			t.Run(kind+"/"+reply, func(t *testing.T) {
				t.Parallel()
				a := Start(t, kind).Warm()
				if got := a.Run(state[kind].set); got.Outcome != frame.OutcomeOK {
					t.Fatalf("before it: %+v", got)
				}
				got := a.Run(fmt.Sprintf(write, reply), Limit(5*time.Second, time.Second))
				if got.Outcome != frame.OutcomeCrashed || got.State != frame.StateLost || got.ExitCode == 7 {
					t.Errorf("%+v", got)
				}
			})
		}
	}
}

// Programs share a pipe, and with it whether it blocks; what one of them
// leaves behind is no matter of the next call's.
func TestPipesBlockAgain(t *testing.T) {
	a := Start(t, "python").Warm()
	const show = "print(os.get_blocking(1), os.get_blocking(2))"
	if got := a.Run("import os\nos.set_blocking(1, False); os.set_blocking(2, False)\n" + show); got.Stdout != "False False\n" {
		t.Fatalf("%+v", got)
	}
	if got := a.Run(show); got.Stdout != "True True\n" {
		t.Errorf("%+v", got)
	}
}

// What a child of an earlier call prints comes with a later call, once.
func TestLateOutput(t *testing.T) {
	a := Start(t, "bash")
	if got := a.Run("(sleep 0.3; echo late) & echo now"); got.Stdout != "now\n" {
		t.Errorf("stdout %q", got.Stdout)
	}
	time.Sleep(600 * time.Millisecond)
	if got := a.Run("echo next"); got.Stdout != "late\nnext\n" {
		t.Errorf("stdout %q", got.Stdout)
	}
	if got := a.Run("echo last"); got.Stdout != "last\n" {
		t.Errorf("stdout %q", got.Stdout)
	}
}

// A call does not wait for children that hold its pipes.
func TestChildrenThatHoldThePipes(t *testing.T) {
	for _, change := range []func(*frame.Request){Ephemeral, func(*frame.Request) {}} {
		a := Start(t, "bash")
		begin := time.Now()
		if got := a.Run("yes & sleep 99 & echo hi", change); got.Outcome != frame.OutcomeOK {
			t.Errorf("%+v", got.Reply)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("answered after %v", took)
		}
		a.Run("kill $(jobs -p)")
	}
}

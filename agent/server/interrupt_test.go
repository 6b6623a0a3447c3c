package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// What runs for ever, by interpreter: state is kept.
var forever = map[string][]string{
	"python": {"while True: pass", "import time; time.sleep(99)", "import subprocess; subprocess.run(['sleep', '99'])", "import threading; threading.Event().wait()"},
	"bash":   {"sleep 99", "while :; do :; done", "while :; do sleep 0.1; done", "y=$(sleep 99)", "sleep 99 | cat", "read < <(sleep 99)", "sleep 99 & wait"},
	"node":   {"while (true) {}", "await new Promise(() => setInterval(() => {}, 1e3))", "await new Promise((ok) => setTimeout(ok, 99e3))"},
}

// What keeps state, by interpreter, and what shows it.
var state = map[string]struct{ set, show, want string }{
	"python": {"x = 41", "x + 1", "42\n"},
	"bash":   {"x=42", "echo $x", "42\n"},
	"node":   {"let x = 41; undefined", "x + 1", "42\n"},
}

func TestTimeoutKeepsState(t *testing.T) {
	t.Parallel()
	for kind, codes := range forever {
		for _, code := range codes {
			t.Run(kind+"/"+code, func(t *testing.T) {
				t.Parallel()
				var a *Agent
				Longer(t, func(limit time.Duration) error {
					a = Start(t, kind).Warm()
					a.Run(state[kind].set)
					begin := time.Now()
					got := a.Run(code, Limit(limit, Grace))
					if got.Outcome != frame.OutcomeTimeout || got.State != frame.StateKept {
						return fmt.Errorf("%s, state %s, want timeout, kept", got.Outcome, got.State)
					}
					if took := time.Since(begin); took < limit {
						t.Errorf("interrupted after %v", took)
					}
					return nil
				})
				a.Steps([]Step{{Code: state[kind].show, Stdout: state[kind].want}})
			})
		}
	}
}

// Code that ignores the interrupt is killed; the next call has a new
// interpreter in the same workspace.
func TestTimeoutOfWhatIgnoresIt(t *testing.T) {
	t.Parallel()
	for kind, code := range map[string]string{
		"python": "import signal\nsignal.signal(2, signal.SIG_IGN)\nprint('ready')\nwhile True: pass",
		"bash":   "trap '' INT\necho ready\nwhile :; do :; done",
		"node":   "process.removeAllListeners('SIGINT'); await 1; console.log('ready'); for (;;);",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var a *Agent
			Longer(t, func(limit time.Duration) error {
				a = Start(t, kind).Warm()
				a.Run(state[kind].set)
				plantState(t, a)
				got := a.Run(code, Limit(limit, 300*time.Millisecond))
				if got.Outcome != frame.OutcomeTimeout || got.State != frame.StateLost || got.Stdout != "ready\n" {
					return fmt.Errorf("%+v", got)
				}
				return nil
			})
			a.Run(state[kind].set)
			a.Steps([]Step{{Code: state[kind].show, Stdout: state[kind].want}})
			checkState(t, a)
		})
	}
}

func TestInterrupt_KeepsState(t *testing.T) {
	t.Parallel()
	for kind, codes := range forever {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := Start(t, kind).Warm()
			a.Run(state[kind].set)
			id := a.Call(codes[0])
			time.Sleep(100 * time.Millisecond) // let it run; either way it must end
			for range 3 {
				a.Send(frame.Request{Type: frame.Interrupt, ID: id})
			}
			if got := a.Wait(id); got.Outcome != frame.OutcomeCancelled || got.State != frame.StateKept {
				t.Errorf("%+v", got)
			}
			a.Steps([]Step{{Code: state[kind].show, Stdout: state[kind].want}})
		})
	}
}

// Code that ends about when an interrupt reaches it.
var ending = map[string]string{
	"python": "import time; time.sleep(0.02)",
	"bash":   "sleep 0.018",
	"node":   "for (const end = Date.now() + 20; Date.now() < end;);",
}

// An interrupt that meets a call at its very end hits no later call. Node
// ends if it comes in the moment in which nothing there handles signals, and
// the result says so.
func TestInterrupt_HitsNoLaterCall(t *testing.T) {
	t.Parallel()
	for kind := range state {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := Start(t, kind).Warm()
			a.Run(state[kind].set)
			for range 50 {
				id := a.Call(ending[kind])
				a.Send(frame.Request{Type: frame.Interrupt, ID: id})
				got := a.Wait(id)
				if got.State == frame.StateLost && kind == "node" {
					a.Run(state[kind].set)
				} else if got.State != frame.StateKept {
					t.Fatalf("%+v", got)
				}
				a.Steps([]Step{{Code: state[kind].show, Stdout: state[kind].want}})
			}
		})
	}
}

func TestEphemeralTimeout(t *testing.T) {
	t.Parallel()
	for kind, codes := range forever {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := Start(t, kind).Warm()
			got := a.Run(codes[0], Ephemeral, func(r *frame.Request) { r.TimeoutMS, r.GraceMS = 500, 300 })
			if got.Outcome != frame.OutcomeTimeout || got.ExitCode < 128 || got.State != "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// An interpreter that does not load takes no longer than the call may.
func TestTimeoutWhileLoading(t *testing.T) {
	t.Parallel()
	a := Start(t, "python", Words("sh", "-c", "sleep 99"))
	begin := time.Now()
	got := a.Run("1", Limit(200*time.Millisecond, 100*time.Millisecond))
	if got.Outcome != frame.OutcomeTimeout || got.State != frame.StateLost {
		t.Errorf("%+v", got)
	}
	if took := time.Since(begin); took > 10*time.Second { // an interpreter may take 15 s to load
		t.Errorf("answered after %v", took)
	}
}

// Output that came before the timeout is in the answer.
func TestTimeoutKeepsOutput(t *testing.T) {
	t.Parallel()
	for kind, code := range map[string]string{
		"python": "print('before')\nwhile True: pass",
		"bash":   "echo before; sleep 99",
		"node":   "console.log('before'); while (true) {}",
	} {
		for name, change := range map[string]func(*frame.Request){"once": Ephemeral, "session": func(*frame.Request) {}} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				Longer(t, func(limit time.Duration) error {
					got := Start(t, kind).Warm().Run(code, Limit(limit, 300*time.Millisecond), change)
					if !strings.HasPrefix(got.Stdout, "before\n") || got.Outcome != frame.OutcomeTimeout {
						return fmt.Errorf("%+v", got)
					}
					return nil
				})
			})
		}
	}
}

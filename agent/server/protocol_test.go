package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

func TestMain(m *testing.M) { os.Exit(patience.Main(m)) }

func TestCallsRunInOrder(t *testing.T) {
	t.Parallel()
	a := Start(t, "python")
	a.Call("n = 0")
	for i := range 100 {
		a.Call(fmt.Sprintf("n += 1; print(n == %d, n)", i+1))
	}
	a.Wait(1)
	for i := range 100 {
		if got, want := a.Wait(uint64(i+2)).Stdout, fmt.Sprintf("True %d\n", i+1); got != want {
			t.Fatalf("call %d: stdout %q, want %q", i, got, want)
		}
	}
}

func TestPongComesWhenLoaded(t *testing.T) {
	t.Parallel()
	a := Start(t, "python")
	a.Send(frame.Request{Type: frame.Ping, ID: 7})
	if diff := cmp.Diff(frame.Reply{Type: frame.Pong, ID: 7}, a.Receive()); diff != "" {
		t.Error(diff)
	}
	// Also while a call runs.
	id := a.Call("import time; time.sleep(99)")
	a.Send(frame.Request{Type: frame.Ping, ID: 8})
	if got := a.Receive(); got.Type != frame.Pong || got.ID != 8 {
		t.Errorf("reply %+v, want pong", got)
	}
	a.Send(frame.Request{Type: frame.Interrupt, ID: id})
	a.Wait(id)
}

func TestInterpreterThatCannotStart(t *testing.T) {
	t.Parallel()
	for name, words := range map[string][]string{
		"missing": {"/nowhere/python3"},
		"wrong":   {"false"},
		"silent":  {"true"},
	} {
		t.Run(name, func(t *testing.T) {
			a := Start(t, "python", Words(words...))
			a.Send(frame.Request{Type: frame.Ping, ID: 7})
			if got := a.Receive(); got.Type != frame.Error || got.ID != 7 || !strings.Contains(got.Message, words[0]) {
				t.Errorf("reply %+v, want an error that names %s", got, words[0])
			}
			for range 2 {
				got := a.Run("1")
				if got.Outcome != frame.OutcomeCrashed || got.ExitCode != 127 || got.State != frame.StateLost || !strings.Contains(got.Stderr, words[0]) {
					t.Errorf("%+v", got)
				}
			}
			a.Send(frame.Request{Type: frame.Ping, ID: 8})
			if got := a.Receive(); got.Type != frame.Error || got.ID != 8 {
				t.Errorf("reply %+v to a late ping, want an error", got)
			}
		})
	}
}

func TestConfigure_SetsVariables(t *testing.T) {
	t.Parallel()
	code := map[string]string{
		"python": "import os; print(os.environ.get('GIVEN'), os.environ['LANG'])",
		"bash":   "echo $GIVEN $LANG",
		"node":   "console.log(process.env.GIVEN, process.env.LANG)",
	}
	for kind := range code {
		for _, loaded := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/loaded=%v", kind, loaded), func(t *testing.T) {
				t.Parallel()
				a := Start(t, kind)
				if loaded {
					a.Send(frame.Request{Type: frame.Ping, ID: 1000})
					a.Receive()
				}
				a.Send(frame.Request{Type: frame.Configure, Env: map[string]string{"GIVEN": "a=b c", "LANG": "C"}})
				if got := a.Run(code[kind]); got.Stdout != "a=b c C\n" {
					t.Errorf("%+v", got)
				}
				a.Send(frame.Request{Type: frame.Configure, ID: 9, Env: map[string]string{"LATE": "1"}})
				if got := a.Receive(); got.Type != frame.Error || got.ID != 9 {
					t.Errorf("reply %+v to a late configure, want an error", got)
				}
			})
		}
	}
}

func TestRequests_AreRefused(t *testing.T) {
	t.Parallel()
	a := Start(t, "bash")
	running := a.Call("echo begun; sleep 99")
	if got := a.Receive(); got.Data != "begun\n" { // it waits no longer
		t.Fatalf("reply %+v, want output", got)
	}
	for name, req := range map[string]frame.Request{
		"a call of the same id":  {Type: frame.Execute, ID: running},
		"a type that is unknown": {Type: "dance", ID: 100},
	} {
		a.Send(req)
		if got := a.Receive(); got.Type != frame.Error || got.ID != req.ID || got.Message == "" {
			t.Errorf("%s: reply %+v, want an error", name, got)
		}
	}
	for id := uint64(1000); id < 1000+1025; id++ {
		a.Send(frame.Request{Type: frame.Execute, ID: id, Keep: true})
	}
	if got := a.Receive(); got.Type != frame.Error || !strings.Contains(got.Message, "1024") {
		t.Errorf("reply %+v to the call that is too many, want an error", got)
	}
	a.Send(frame.Request{Type: frame.Interrupt, ID: running})
	if got := a.Wait(running); got.Outcome != frame.OutcomeCancelled {
		t.Errorf("%+v", got)
	}
	for id := uint64(1000); id < 1000+1024; id++ {
		if got := a.Wait(id); got.Outcome != frame.OutcomeOK {
			t.Fatalf("%+v", got)
		}
	}
}

func TestInterruptOfAWaitingCall(t *testing.T) {
	t.Parallel()
	a := Start(t, "bash")
	first := a.Call("until [ -e go ]; do sleep 0.01; done; rm go; echo first")
	second := a.Call("touch ran")
	third := a.Call("ls")
	a.Send(frame.Request{Type: frame.Interrupt, ID: second})
	if got := a.Wait(second); got.Outcome != frame.OutcomeCancelled || got.State != frame.StateKept {
		t.Errorf("%+v", got)
	}
	must.Do(t, os.WriteFile(filepath.Join(a.Root, "go"), nil, 0o644))
	if got := a.Wait(first); got.Stdout != "first\n" {
		t.Errorf("%+v", got)
	}
	if got := a.Wait(third); got.Stdout != "" {
		t.Errorf("a cancelled call ran: %+v", got)
	}
	// Too late and never heard of: nobody waits for an answer.
	a.Send(frame.Request{Type: frame.Interrupt, ID: second})
	a.Send(frame.Request{Type: frame.Interrupt, ID: 12345})
	if got := a.Run("echo alive"); got.Stdout != "alive\n" {
		t.Errorf("%+v", got)
	}
}

func TestEndsWithItsRequests(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"", "trap '' INT TERM; while :; do sleep 1; done"} {
		t.Run(code, func(t *testing.T) {
			a := Start(t, "bash")
			pid := strings.TrimSpace(a.Run("echo $$").Stdout)
			if code != "" {
				a.Call(code)
			}
			a.HangUp()
			if !a.Closed() {
				t.Fatal("the agent still runs")
			}
			if _, err := os.Stat("/proc/" + pid); err == nil {
				t.Error("the interpreter still runs")
			}
		})
	}
}

func TestCommand_RunsEachCall(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	for name, test := range map[string]struct {
		option Option
		step   Step
		grace  time.Duration // of a call that must time out
	}{
		"argument":     {Command(false, "/bin/sh", "-c"), Step{Code: "echo \"$0\"; exit 3", Stdout: "/bin/sh\n", Exit: 3}, 0},
		"pipe":         {Command(true, "/bin/sh"), Step{Code: "echo a\nexit 4", Stdout: "a\n", Exit: 4}, 0},
		"long pipe":    {Command(true, "wc", "-c"), Step{Code: long, Stdout: "1048576\n"}, 0},
		"no stdin":     {Command(false, "/bin/sh", "-c"), Step{Code: "cat; echo end", Stdout: "end\n"}, 0},
		"signal":       {Command(false, "/bin/sh", "-c"), Step{Code: "kill -9 $$", Exit: 137, Outcome: frame.OutcomeCrashed}, 0},
		"too long":     {Command(false, "/bin/sh", "-c"), Step{Code: long, Exit: 127, Outcome: frame.OutcomeCrashed, Stderr: "131071"}, 0},
		"NUL":          {Command(false, "/bin/sh", "-c"), Step{Code: "a\x00b", Exit: 127, Outcome: frame.OutcomeCrashed, Stderr: "NUL"}, 0},
		"not there":    {Command(false, "/nowhere/sh"), Step{Code: "a", Exit: 127, Outcome: frame.OutcomeCrashed, Stderr: "/nowhere/sh"}, 0},
		"interrupt":    {Command(false, "/bin/sh", "-c"), Step{Code: "sleep 99", Exit: 130, Outcome: frame.OutcomeTimeout}, Grace},
		"ignores it":   {Command(false, "/bin/sh", "-c"), Step{Code: "trap '' INT; echo ready; while :; do sleep 1; done", Stdout: "ready\n", Exit: 137, Outcome: frame.OutcomeTimeout}, 200 * time.Millisecond},
		"empty":        {Command(true, "/bin/sh"), Step{}, 0},
		"state is not": {Command(true, "/bin/sh"), Step{Code: "echo $x", Stdout: "\n"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			Longer(t, func(limit time.Duration) error {
				step := test.step
				step.Change = func(r *frame.Request) {
					if step.Outcome == frame.OutcomeTimeout {
						r.TimeoutMS, r.GraceMS = limit.Milliseconds(), test.grace.Milliseconds()
					}
					r.Keep = false
				}
				err := Start(t, "command", test.option).Try([]Step{step, step})
				if step.Outcome != frame.OutcomeTimeout {
					must.Do(t, err)
				}
				return err
			})
		})
	}
}

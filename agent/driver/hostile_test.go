package driver_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// hostile is the file hostile.txtar of an interpreter.
func hostile(t *testing.T, name string) cases {
	t.Helper()
	return readCases(t, filepath.Join(Folder(t, name), "testdata", "hostile.txtar"))
}

// Whatever the code does, its call is answered within its time, and the next
// call works. The answer may be that the interpreter died.
func TestHostile(t *testing.T) {
	t.Parallel()
	for _, interpreter := range Interpreters(t) {
		c := hostile(t, interpreter)
		set, _ := c.steps(t, "", "_state", nil)
		for _, name := range c.names {
			if strings.HasPrefix(name, "_") {
				continue
			}
			t.Run(interpreter+"/"+name, func(t *testing.T) {
				t.Parallel()
				a := Start(t, interpreter, Env("NODE_OPTIONS", "--max-old-space-size=64")).Warm()
				begin := time.Now()
				first := a.Run(c.files[name], Limit(time.Second, 500*time.Millisecond))
				if took := time.Since(begin); took > patience.Long {
					t.Errorf("answered after %v", took)
				}
				t.Logf("%s, state %s, exit status %d", first.Outcome, first.State, first.ExitCode)
				// The damage may show with a later call only, whose answer
				// then says so; in the end two calls in a row must work.
				for good, calls := 0, 0; good < 2; calls++ {
					if calls == 6 {
						t.Fatal("no call works any more")
					}
					// Longer each time: what works may be slow.
					next := a.Run(set[0].Code, Limit(time.Second<<(calls+1), time.Second<<calls))
					if next.Outcome == frame.OutcomeOK && next.ExitCode == 0 && next.State == frame.StateKept {
						good++
						continue
					}
					good = 0
					t.Logf("then %s, state %s, exit status %d", next.Outcome, next.State, next.ExitCode)
					if next.State == frame.StateKept {
						// The code made the interpreter so. It can still
						// be ended.
						a.Run("kill -9 $$", Limit(time.Second, time.Second))
					}
				}
			})
		}
	}
}

// A reply without the call's own number ends the interpreter: it neither ends
// the call, nor leaves state, nor has the code interrupted.
func TestForgedReplies(t *testing.T) {
	t.Parallel()
	for _, interpreter := range Interpreters(t) {
		c := hostile(t, interpreter)
		state, _ := c.steps(t, "", "_state", nil)
		for _, reply := range []string{"done 0123456789abcdef 7", "leave 0123456789abcdef", "stop 0123456789abcdef"} {
			t.Run(interpreter+"/"+reply, func(t *testing.T) {
				t.Parallel()
				a := Start(t, interpreter).Warm()
				a.Steps(state)
				got := a.Run(fmt.Sprintf(c.files["_forge"], reply), Limit(patience.Long, time.Second))
				if got.Outcome != frame.OutcomeCrashed || got.State != frame.StateLost || got.ExitCode == 7 {
					t.Errorf("%+v", got)
				}
			})
		}
	}
}

package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/server"
	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// A call without a session ends the interpreter, and with it the state that a
// session's calls left there. The session's next call says so, once.
func TestState_LostByACallWithoutASession(t *testing.T) {
	t.Parallel()
	for kind := range state {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := Start(t, kind).Warm()
			a.Steps([]Step{{Code: state[kind].set}, {Code: state[kind].show, Stdout: state[kind].want}})
			if got := a.Run("", Ephemeral); got.Outcome != frame.OutcomeOK || got.State != "" {
				t.Fatalf("the call without a session: %+v", got)
			}
			a.Steps([]Step{
				{Code: state[kind].set, Lost: true},
				{Code: state[kind].show, Stdout: state[kind].want},
			})
		})
	}
}

// fake is a program that answers as Python's driver does, after one part of a script and
// before another one, and then ends. It records each start in the workspace.
func fake(t *testing.T, before, after string) *Agent {
	return Start(t, "python", Words("sh", "-c", "echo >>starts; "+before+"\necho ready >&3; "+after, "sh"))
}

// The call that finds the interpreter ended by a limit says which one it was, also if it comes
// before that end is noticed.
func TestSend_ReportsTheLimitThatEndedTheInterpreter(t *testing.T) {
	t.Parallel()
	folder, _ := Driver(t, "python")
	spec := interpreter.Spec{
		Driver: must.Get(driver.Load(folder))(t), Root: t.TempDir(), Env: []string{"PATH=" + os.Getenv("PATH")},
		Command: []string{"sh", "-c", "echo ready >&3; read -r line <&3", "sh"},
	}
	null := must.Get(os.OpenFile(os.DevNull, os.O_RDWR, 0))(t)
	defer null.Close()
	spec.Null, spec.Stdout, spec.Stderr = null, null, null
	limit, err := server.SendAfterLimit(Table(), spec)
	if err != nil || limit == nil || limit.Name != frame.Memory {
		t.Errorf("limit %+v, error %v", limit, err)
	}
}

// An interpreter that loads and ends by itself is not started again and again:
// a ping is answered with an error, and the next call starts it once more.
func TestInterpreter_EndsAfterItHasLoaded(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"with its first code": "read -r line <&3",
		"while it is idle":    `read -r word nonce rest <&3; echo "done $nonce 0" >&3`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := fake(t, "while [ ! -e go ]; do sleep 0.01; done", script)
			// It is given its first code only where a ping waits for it.
			a.Send(frame.Request{Type: frame.Ping, ID: 7})
			a.Send(frame.Request{Type: "nothing", ID: 8})
			if got := a.Receive(); got.Type != frame.Error || got.ID != 8 {
				t.Fatalf("reply %+v, want an error", got)
			}
			must.Do(t, os.WriteFile(filepath.Join(a.Root, "go"), nil, 0o644))
			got := a.Receive()
			for end := time.Now().Add(patience.Long); ; got = a.Receive() {
				if got.Type == frame.Error && strings.Contains(got.Message, "sh") {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("reply %+v, want an error", got)
				}
				a.Send(frame.Request{Type: frame.Ping, ID: 7})
			}
			starts, err := os.ReadFile(filepath.Join(a.Root, "starts"))
			if err != nil || len(starts) != 1 {
				t.Errorf("%d starts, error %v, want 1", len(starts), err)
			}
			a.Run("1")
			starts, err = os.ReadFile(filepath.Join(a.Root, "starts"))
			if err != nil || len(starts) < 2 {
				t.Errorf("%d starts after a call, error %v, want more", len(starts), err)
			}
		})
	}
}

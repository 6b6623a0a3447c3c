package session_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

func TestMain(m *testing.M) { os.Exit(mcptest.Main(m)) }

// Over real sandboxes a session keeps its state, a cancellation interrupts and
// keeps it, a death loses it, and nothing is left at the end.
func TestRealSandboxes(t *testing.T) {
	set, starter := sandboxtest.Real(t)
	bash := set.Environments["bash"]
	sessions := session.New(starter, sandboxtest.Spec, session.Once(starter, sandboxtest.Spec), session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: 8}, slog.New(slog.DiscardHandler))
	defer sessions.Close()
	begun := make(chan struct{}, 1)
	run := func(ctx context.Context, session, code string) (call.Result, error) {
		return sessions.Execute(ctx, call.Call{Env: bash, Session: session, Code: code, Progress: func(line string) {
			if line == "begun" {
				begun <- struct{}{}
			}
		}})
	}
	for _, step := range []struct{ session, code, want string }{
		{"a", "x=1; echo $x", "1\n"}, {"b", "echo none$x", "none\n"}, {"a", "echo $((x+1))", "2\n"}, {"", "echo once$x", "once\n"},
	} {
		if result, err := run(t.Context(), step.session, step.code); err != nil || result.Stdout.Head != step.want {
			t.Errorf("%s: answer %+v, error %v", step.code, result, err)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-begun
		cancel()
	}()
	result, err := run(ctx, "a", "echo begun; sleep 99")
	if err != nil || result.Outcome != frame.OutcomeCancelled || result.State != frame.StateKept {
		t.Errorf("cancelled: answer %+v, error %v", result, err)
	}
	if result, err := run(t.Context(), "a", "echo $x"); err != nil || result.Stdout.Head != "1\n" {
		t.Errorf("after it: answer %+v, error %v", result, err)
	}

	broken := bash
	broken.SessionExec = "/nowhere/session-run"
	var start *call.StartError
	if _, err := sessions.Execute(t.Context(), call.Call{Env: broken}); !errors.As(err, &start) {
		t.Errorf("error %v", err)
	}
}

package session

import (
	"context"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

const (
	// onceGrace is the time between interrupt and kill of a call without a session,
	// which has no state to lose.
	onceGrace = 300 * time.Millisecond
	// killDelay is how long a sandbox outlives its only call: ending it takes a
	// processor for milliseconds, and the answer goes first.
	killDelay = 5 * time.Millisecond
)

// Once returns an Executor that starts a sandbox for each call and throws it
// away.
func Once(starter sandbox.Starter, spec SpecFunc) call.Executor { return &once{starter, spec} }

type once struct {
	starter sandbox.Starter
	spec    SpecFunc
}

func (o *once) Execute(ctx context.Context, c call.Call) (call.Result, error) {
	box, err := start(ctx, o.starter, o.spec(c))
	if err != nil {
		return call.Result{}, err
	}
	defer time.AfterFunc(killDelay, box.Kill)
	result, err := execute(ctx, box, c, onceGrace, false, false)
	return call.Result{Result: result}, err
}

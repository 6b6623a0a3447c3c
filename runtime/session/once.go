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

// Keeper keeps files of a call whose sandbox is about to be thrown away; package kept
// has it.
type Keeper interface {
	// Keep sets Kept of the files that it keeps for a principal.
	Keep(ctx context.Context, principal string, box sandbox.Sandbox, files []sandbox.File)
}

// Once returns an Executor that starts a sandbox for each call and throws it
// away. What the call left in /workspace/outputs goes to keeper, which may be nil.
func Once(starter sandbox.Starter, spec SpecFunc, keeper Keeper) call.Executor {
	return &once{starter, spec, keeper}
}

type once struct {
	starter sandbox.Starter
	spec    SpecFunc
	keeper  Keeper
}

func (o *once) Execute(ctx context.Context, c call.Call) (call.Result, error) {
	box, err := start(ctx, o.starter, o.spec(c))
	if err != nil {
		return call.Result{}, err
	}
	defer time.AfterFunc(killDelay, box.Kill)
	result, err := execute(ctx, box, c, sandbox.Request{Grace: onceGrace})
	// Nobody reads the answer of a call that was cancelled.
	if err == nil && o.keeper != nil && ctx.Err() == nil {
		o.keeper.Keep(ctx, c.Principal, box, result.Files)
	}
	return call.Result{Result: result}, err
}

package session

import (
	"context"
	"slices"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

const (
	// oneShotGrace is the time between interrupt and kill of a one-shot call, which has no
	// state to lose.
	oneShotGrace = 300 * time.Millisecond
	// killDelay is how long a sandbox outlives its only call. Ending it takes a processor
	// for milliseconds, and the answer goes first.
	killDelay = 5 * time.Millisecond
)

// CallFiles keeps the files of one-shot calls, whose sandboxes are about to end. Package
// callfiles implements it.
type CallFiles interface {
	// Keep sets Kept of the files that it keeps for a principal.
	Keep(ctx context.Context, principal string, box sandbox.Sandbox, files []sandbox.File) []call.Note
}

// OneShot returns an Executor that starts a sandbox for each call and ends it afterwards.
// Files that the call left in the workspace go to keeper, which may be nil.
func OneShot(starter sandbox.Starter, spec SpecFunc, keeper CallFiles) call.Executor {
	return &oneShot{starter, spec, keeper}
}

type oneShot struct {
	starter sandbox.Starter
	spec    SpecFunc
	keeper  CallFiles
}

func (o *oneShot) Answer(ctx context.Context, c call.Call) (call.Result, error) {
	box, err := start(ctx, o.starter, o.spec(c))
	if err != nil {
		return call.Result{}, err
	}
	defer time.AfterFunc(killDelay, box.Kill)
	ran, err := execute(ctx, box, c, sandbox.Request{Grace: oneShotGrace})
	result := call.Result{Result: ran}
	// The answer of a cancelled call is not read.
	if err == nil && o.keeper != nil && ctx.Err() == nil {
		readable := len(result.Files)
		if i := slices.IndexFunc(result.Files, func(f sandbox.File) bool { return !f.Readable() }); i >= 0 {
			readable = i
		}
		result.Notes = o.keeper.Keep(ctx, c.Principal, box, result.Files[:readable])
	}
	return result, err
}

// execute runs a call in a sandbox and reads the images that it wrote. It completes the
// request.
func execute(ctx context.Context, box sandbox.Sandbox, c call.Call, request sandbox.Request) (sandbox.Result, error) {
	request.Code, request.Given, request.Timeout, request.Progress = c.Code, c.Given, c.TimeLimit(), c.Progress
	request.Ask, request.Hold = c.Ask, c.Hold
	if c.User != nil {
		c.User.Serve(&request)
	}
	result, err := box.Run(ctx, request)
	if err != nil {
		return result, err
	}
	// Images that were written before a cancellation are shown as well.
	readImages(context.WithoutCancel(ctx), box, result.Files)
	return result, nil
}

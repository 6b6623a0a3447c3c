package session

import (
	"context"
	"fmt"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/suspended"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// An Asleep is a session that sleeps and that no server has. A user runs code in it, or
// copies it; an error leaves it as it slept.
type Asleep struct {
	Store   *suspended.Store
	Key     suspended.Key
	Starter sandbox.Starter
	// Spec is that of the session's sandbox in a server.
	Spec sandbox.Spec
}

// wake starts the session's sandbox, which the caller kills, as the state's owner, who
// closes it.
func (a Asleep) wake(ctx context.Context) (sandbox.Sandbox, *suspended.State, error) {
	state, err := a.Store.Find(a.Key)
	if err != nil {
		return nil, nil, err
	}
	if state == nil { // it was woken, or deleted
		return nil, nil, &call.NoSessionError{Session: a.Key.Session}
	}
	spec := a.Spec
	spec.From = state.Folder()
	box, err := start(ctx, a.Starter, spec)
	if err != nil {
		state.Close()
		return nil, nil, err
	}
	return box, state, nil
}

// Run wakes the session, runs code in it, and has it sleep again with what the code did.
// Where the context ends, the code is interrupted, and the session sleeps then.
func (a Asleep) Run(ctx context.Context, request sandbox.Request) (result sandbox.Result, err error) {
	box, state, err := a.wake(ctx)
	if err != nil {
		return result, err
	}
	defer state.Close()
	defer box.Kill()
	request.Grace, request.Keep = sessionGrace, true
	if result, err = box.Execute(ctx, request); err != nil && ctx.Err() == nil {
		return result, err
	}
	bytes, saveErr := box.Suspend(context.WithoutCancel(ctx), state.Next(), false)
	if saveErr == nil {
		saveErr = state.Commit(bytes)
	}
	if saveErr != nil {
		return result, fmt.Errorf("session %q sleeps as it was before the code: %w", a.Key.Session, saveErr)
	}
	return result, err
}

// Copy makes another session that sleeps, as it is now, with random numbers of its own.
// The error is a [*call.BranchError] where that exists already.
func (a Asleep) Copy(ctx context.Context, to suspended.Key) error {
	copied, err := a.Store.Acquire(to)
	if err != nil {
		return err
	}
	if copied.Folder() != "" {
		copied.Close()
		return &call.BranchError{From: a.Key.Session, Session: to.Session, Reason: call.Existing}
	}
	bytes, err := a.copyTo(ctx, copied.Next())
	if err == nil {
		err = copied.Commit(bytes)
	}
	if err != nil {
		_ = copied.Remove() // what remains, the next who counts the sessions deletes
		return err
	}
	copied.Close()
	return nil
}

func (a Asleep) copyTo(ctx context.Context, folder string) (bytes int64, err error) {
	box, state, err := a.wake(ctx)
	if err != nil {
		return 0, err
	}
	defer state.Close()
	defer box.Kill()
	return box.Suspend(ctx, folder, true)
}

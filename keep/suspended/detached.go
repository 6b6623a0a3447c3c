package suspended

import (
	"context"
	"fmt"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// detachedGrace is the time between interrupt and kill of code that a user runs in a
// suspended session.
const detachedGrace = 2 * time.Second

// A Detached is a suspended session that a user runs code in, or copies, without a server.
// If that fails, the session stays suspended as it was.
type Detached struct {
	Store   *Store
	Key     Key
	Starter sandbox.Starter
	// Spec is that of the session's sandbox in a server.
	Spec sandbox.Spec
}

// resume starts the session's sandbox. The caller kills it and closes the state.
func (d Detached) resume(ctx context.Context) (sandbox.Sandbox, *State, error) {
	state, err := d.Store.Find(d.Key)
	if err != nil {
		return nil, nil, err
	}
	if state == nil { // it was resumed or deleted meanwhile
		return nil, nil, &call.NoSessionError{Session: d.Key.Session}
	}
	spec := d.Spec
	spec.From = state.Folder()
	box, err := d.Starter.Start(ctx, spec)
	if err != nil {
		state.Close()
		return nil, nil, &call.StartError{Env: spec.Name, Err: err}
	}
	return box, state, nil
}

// Run resumes the session, runs code in it, and suspends it again. If the context ends, the
// code is interrupted before that.
func (d Detached) Run(ctx context.Context, request sandbox.Request) (result sandbox.Result, err error) {
	box, state, err := d.resume(ctx)
	if err != nil {
		return result, err
	}
	defer state.Close()
	defer box.Kill()
	request.Grace, request.Keep = detachedGrace, true
	if result, err = box.Execute(ctx, request); err != nil && ctx.Err() == nil {
		return result, err
	}
	bytes, saveErr := saveState(context.WithoutCancel(ctx), box, state.Next(), false)
	if saveErr == nil {
		saveErr = state.Commit(bytes)
	}
	if saveErr != nil {
		return result, fmt.Errorf("session %q stays suspended as it was before the code: %w", d.Key.Session, saveErr)
	}
	return result, err
}

// Copy makes another suspended session, with random numbers of its own. The error is a
// [*call.BranchError] if that one exists already.
func (d Detached) Copy(ctx context.Context, to Key) error {
	copied, err := d.Store.Acquire(to)
	if err != nil {
		return err
	}
	if copied.Folder() != "" {
		copied.Close()
		return &call.BranchError{From: d.Key.Session, Session: to.Session, Reason: call.Existing}
	}
	bytes, err := d.copyTo(ctx, copied.Next())
	if err == nil {
		err = copied.Commit(bytes)
	}
	if err != nil {
		_ = copied.Remove() // the next Clean deletes the rest
		return err
	}
	copied.Close()
	return nil
}

func (d Detached) copyTo(ctx context.Context, folder string) (bytes int64, err error) {
	box, state, err := d.resume(ctx)
	if err != nil {
		return 0, err
	}
	defer state.Close()
	defer box.Kill()
	return saveState(ctx, box, folder, true)
}

package packages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

// copyTimeout bounds the copy of a session's files from one sandbox to another.
const copyTimeout = time.Minute

// Grow is the [session.Part] that gives a sandbox the files of the one that it replaces, because a
// call adds packages to the session's environment.
type Grow struct{}

// Start implements [session.Part].
func (Grow) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	begun, err := next(ctx, s)
	if err != nil || s.Former == nil {
		return begun, err
	}
	// A shared workspace has the files already.
	if s.Spec.Workspace == nil {
		if err := copyFiles(ctx, begun.Sandbox(), s.Former.Sandbox()); err != nil {
			begun.End("")
			if ctx.Err() != nil {
				return nil, err
			}
			return nil, &call.StartError{Env: s.Spec.Name, Err: fmt.Errorf("copy the files of the session: %w", err)}
		}
	}
	s.Notes = append(s.Notes, call.Grown{})
	return begun, nil
}

// copyFiles copies the workspace of a sandbox to another one.
func copyFiles(ctx context.Context, to, from sandbox.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	source, ok1 := from.(sandbox.Saver)
	target, ok2 := to.(sandbox.Saver)
	if !ok1 || !ok2 {
		return errors.New("these sandboxes cannot copy files")
	}
	return target.RestoreFiles(ctx, source.SaveFiles(ctx, sandbox.All))
}

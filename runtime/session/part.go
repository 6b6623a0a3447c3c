package session

import (
	"context"
	"errors"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// A Part adds something to sessions that the Manager knows nothing about: kept files, a
// patch, suspension, more packages. It wraps the start of a sandbox as HTTP middleware
// wraps a handler: it may change the spec before it calls next, use the sandbox that next
// returns, and call next again if that one turns out to be useless.
//
// A part that needs to act later returns a [Member] of its own that embeds the one from
// next and overrides some of its methods.
type Part interface {
	Start(ctx context.Context, s *Start, next StartFunc) (Member, error)
}

// StartFunc starts a sandbox for a session. The errors are those of [call.Executor].
type StartFunc func(ctx context.Context, s *Start) (Member, error)

// Start describes a sandbox that is about to start for a session.
type Start struct {
	// Call is the first call that the sandbox will run.
	Call call.Call
	Spec sandbox.Spec
	// Former is the sandbox that the new one replaces, or nil. It ends when the new one
	// has started, and stays if that fails.
	Former Member
	// Notes are for the answer to the sandbox's first call.
	Notes []call.Note

	manager *Manager
}

// Member is a sandbox of a session, with everything that parts add to it. Only the
// goroutine that has the session's turn uses it, except that End may come at any time
// when the server ends.
type Member interface {
	Sandbox() sandbox.Sandbox
	// Call runs the code of a call. It returns when the result is complete.
	Call(ctx context.Context, c call.Call, request sandbox.Request) (call.Result, error)
	// Settle returns what remains to be done after the answer to the last call has been
	// written, or nil. The session's next call waits for it. If the server is ending,
	// suspension may follow.
	Settle(ending bool) []func()
	// Beside is called when a program begins in the sandbox beside its calls, and done when that has
	// ended, which returns remarks for whoever began it. Several may run at once, at any time.
	Beside() (done func(ctx context.Context) (remarks []string))
	// CanSuspend reports whether Suspend is worth trying.
	CanSuspend() bool
	// Suspend writes the session to disk, from where a later Start can resume it, and
	// returns its size there in bytes. The sandbox has ended then. After an error, the
	// session goes on.
	Suspend(ctx context.Context) (bytes int64, err error)
	// End ends the sandbox. It must not wait. The cause is empty if the sandbox was
	// replaced or its start failed.
	End(why call.Cause)
}

// plain is a Member without any parts.
type plain struct{ box sandbox.Sandbox }

func (p plain) Sandbox() sandbox.Sandbox { return p.box }

func (p plain) Call(ctx context.Context, c call.Call, request sandbox.Request) (call.Result, error) {
	result, err := execute(ctx, p.box, c, request)
	return call.Result{Result: result}, err
}

func (plain) Settle(bool) []func() { return nil }

func (plain) Beside() (done func(context.Context) []string) {
	return func(context.Context) []string { return nil }
}

func (plain) CanSuspend() bool { return false }

func (plain) Suspend(context.Context) (int64, error) {
	return 0, errors.New("no part suspends the session")
}

func (p plain) End(call.Cause) { p.box.Kill() }

// chain returns a function that starts a sandbox through parts, the first one outermost.
func chain(parts []Part, start StartFunc) StartFunc {
	for i := len(parts) - 1; i >= 0; i-- {
		part, next := parts[i], start
		start = func(ctx context.Context, s *Start) (Member, error) { return part.Start(ctx, s, next) }
	}
	return start
}

// Borrow waits for the turn of another session of the same principal and environment, and
// returns its member until release is called. If the session has no sandbox, one is started
// for it as for a call; known says that there is something to start it from. The error is a
// [*call.BranchError] if the session is unknown or runs a call.
func (s *Start) Borrow(ctx context.Context, id string, known bool) (member Member, notes []call.Note, release func(), err error) {
	origin := s.Call
	origin.Session, origin.From = id, ""
	m := s.manager
	m.mu.Lock()
	other := m.sessions[origin.Key()]
	refusal := call.BranchError{From: id, Session: s.Call.Session, Env: s.Call.Env.Name}
	switch {
	case other != nil && len(other.queue) > other.settling:
		refusal.Reason = call.Busy
	case other == nil && !known:
		refusal.Reason = call.Unknown
	case other == nil:
		other = m.newSession(origin.Key())
	}
	if refusal.Reason != "" {
		m.mu.Unlock()
		return nil, nil, nil, &refusal
	}
	turn := m.enqueue(other)
	m.mu.Unlock()
	release = func() { m.release(other, turn) }
	select {
	case <-turn: // at once, unless the session settles
	case <-ctx.Done():
		release()
		return nil, nil, nil, ctx.Err()
	}
	one, err := m.lease(ctx, other, origin)
	if err != nil {
		release()
		return nil, nil, nil, err
	}
	return one.Member, one.notes, release, nil
}

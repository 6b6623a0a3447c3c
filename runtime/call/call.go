// Package call is the seam between transports and sandboxes: a transport makes a [Call] of a
// client's request, and an [Executor] makes a [Result] of it. A feature that concerns every call is
// an Executor that wraps another one, such as [Log]; package service puts them together.
package call

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Call is code to run.
type Call struct {
	// Principal is the caller, or "" if there is only one client.
	Principal string
	// Trace is the trace id that the client gave the call: 32 hexadecimal digits, or
	// empty.
	Trace string
	Env   registry.Environment
	// Session is the session's id; empty for a call without one.
	Session string
	// From is the session that this one begins as a copy of, or "".
	From string
	Code string
	// Given is what a program gave with the call, or nil.
	Given *frame.Given
	// Verbatim asks for the output as the code wrote it, without marks for a model.
	Verbatim bool
	// Last asks for the end of the session after this call.
	Last bool
	// Timeout is how long the code may run, from its start on; 0 is the
	// environment's usual time.
	Timeout time.Duration
	// Ticket is the call's position among those of its session, or nil if the transport took no
	// ticket when the call arrived. The transport releases it.
	Ticket *Ticket
	// Progress shows the call while it runs, or is nil if nothing shows it.
	Progress *sandbox.Progress
	// Ask and Hold, if they are not nil, answer what the code asks the server: see [sandbox.Request].
	Ask  sandbox.Ask
	Hold func(bytes int64) (release func(), err error)
	// Client asks the user by the client that made the call. It is nil if that cannot.
	Client Way
	// User is whom parts of the server ask for the call. It is nil if they ask no one.
	User User
}

// TimeLimit is how long the code may run.
func (c Call) TimeLimit() time.Duration { return cmp.Or(c.Timeout, c.Env.Timeout) }

// Origin returns the principal and the trace id, if they are set, as attributes for a log.
func (c Call) Origin() (attributes []any) {
	if c.Principal != "" {
		attributes = append(attributes, slog.String("principal", c.Principal))
	}
	if c.Trace != "" {
		attributes = append(attributes, slog.String("trace_id", c.Trace))
	}
	return attributes
}

// Key names the call's session.
func (c Call) Key() Key { return Key{c.Principal, c.Session} }

// Key names a session. The sessions of two principals never meet.
type Key struct{ Principal, ID string }

// Result is the outcome of a call. It is complete: no part of it is fetched later.
type Result struct {
	sandbox.Result
	// Restart says why the session had to begin anew. It is nil if the session went on, or
	// if this is its first call.
	Restart *Restart
	// Notes are what parts of the server add to the result.
	Notes []Note
	// Remarks are the server's words about the call, a sentence each, as the model reads them in
	// brackets. Package tool adds them.
	Remarks []string
	// Release gives back what the call holds until its answer is encoded. It may be nil.
	Release func()
}

// Cause is why a session ended.
type Cause string

const (
	Idle     Cause = "idle"     // no call had used it for [Restart.After]
	Lifetime Cause = "lifetime" // it had lived for [Restart.After]
	Died     Cause = "died"     // its sandbox died
	Closed   Cause = "closed"   // the server ends
	Replaced Cause = "replaced" // it was one of a server that has ended
	NoMemory Cause = "memory"   // the machine was short of memory
	Finished Cause = "finished" // the client said that a call was the last
	// Suspended means that the sandbox ended and the session goes on.
	Suspended Cause = "suspended"
)

// Restart says why a session ended before.
type Restart struct {
	Cause Cause
	After time.Duration
	// FilesKept says that one sandbox of the session ended, and the others preserved its files.
	FilesKept bool
}

// Executor answers calls. Its methods may be called at the same time.
type Executor interface {
	// Answer runs a call and returns its result. When ctx ends, a running call is interrupted, and
	// its result says so. The error says why the code did not run or did not end: ctx's,
	// [sandbox.ErrClosed], a [*StartError], a [*sandbox.DeadError] if the sandbox ended during the
	// call, of which the result then shows the beginning, or one of the errors below.
	Answer(ctx context.Context, call Call) (Result, error)
}

// StartError reports that no sandbox could be started for a call.
type StartError struct {
	Env string
	Err error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("start a sandbox of environment %q: %v", e.Env, e.Err)
}
func (e *StartError) Unwrap() error { return e.Err }

// OtherEnvError reports a call to a session of another environment.
type OtherEnvError struct {
	Session, Has, Wanted string
	// Changed says that the session could go on in the wanted environment, but would lose its
	// changes in the project.
	Changed bool
}

func (e *OtherEnvError) Error() string {
	return fmt.Sprintf("session %q has environment %q, not %q", e.Session, e.Has, e.Wanted)
}

// BranchError reports a session that did not begin as a copy of another one.
type BranchError struct {
	From, Session string
	Reason        BranchRefusal
	// Env is the environment that has no branches.
	Env string
	// Problem is the underlying error, for [NoCopy].
	Problem error
}

// BranchRefusal is why there is no branch.
type BranchRefusal string

const (
	Busy       BranchRefusal = "busy"       // a call of the origin runs or waits
	Unknown    BranchRefusal = "unknown"    // there is no such origin
	Existing   BranchRefusal = "existing"   // there is a session of that name already
	Branchless BranchRefusal = "branchless" // the environment has no branches
	NoCopy     BranchRefusal = "no-copy"    // the copy failed
)

func (e *BranchError) Error() string {
	text := fmt.Sprintf("session %q does not begin as a copy of %q: %s", e.Session, e.From, e.Reason)
	if e.Problem != nil {
		text += ": " + e.Problem.Error()
	}
	return text
}

func (e *BranchError) Unwrap() error { return e.Problem }

// InUseError reports a session with files that another server uses.
type InUseError struct {
	Session string
	// PID is the server's process, or 0 if it is unknown, and About names its project.
	PID   int
	About string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("session %q is in use by another server, process %d", e.Session, e.PID)
}

// CallsError reports a call beyond a principal's limit of simultaneous calls.
type CallsError struct{ Max int }

func (e *CallsError) Error() string { return fmt.Sprintf("%d calls run or wait already", e.Max) }

// BusyError reports a call that came while too many waited. Calls and Bytes bound their number
// and their messages together; both are 0 if principals share the bound.
type BusyError struct{ Calls, Bytes int }

func (e *BusyError) Error() string { return "too many calls wait already" }

// MemoryError reports a sandbox beyond the memory that a principal's sandboxes may have. All
// fields are in bytes.
type MemoryError struct{ Used, Wanted, Max int64 }

func (e *MemoryError) Error() string {
	return fmt.Sprintf("sandboxes may take %d bytes, and another one %d: %d are allowed", e.Used, e.Wanted, e.Max)
}

// GoneError reports a file of a call without a session that is not kept any more, and how
// long such files are kept: Idle after they were last read, Lifetime at most.
type GoneError struct{ Idle, Lifetime time.Duration }

func (e *GoneError) Error() string { return "the file is not kept any more" }

// NoSessionError reports a session that does not live.
type NoSessionError struct{ Session string }

func (e *NoSessionError) Error() string { return fmt.Sprintf("there is no session %q", e.Session) }

// FullError reports that no further session can begin.
type FullError struct {
	Max int
	// Idle are the principal's idle sessions, beginning with the one that has been idle longest.
	Idle []IdleSession
}

// IdleSession is an idle session.
type IdleSession struct {
	ID, Env string
	Idle    time.Duration
}

func (e *FullError) Error() string {
	return fmt.Sprintf("all %d sessions are in use, %d of them are idle", e.Max, len(e.Idle))
}

// DiedDuring returns the error of a sandbox that ended during the call, or
// nil.
func DiedDuring(err error) *sandbox.DeadError {
	var start *StartError
	var dead *sandbox.DeadError
	if errors.As(err, &start) || !errors.As(err, &dead) {
		return nil
	}
	return dead
}

// OutcomeFailed is the outcome of a call if its code ended by itself with another status than 0.
const OutcomeFailed = "failed"

// Outcome returns the outcome of a call in one word: the result's own outcome, failed, cancelled, died or
// refused.
func Outcome(result Result, err error) string {
	switch {
	case err == nil && result.Outcome == frame.OutcomeOK && result.ExitCode != 0:
		return OutcomeFailed
	case err == nil:
		return result.Outcome
	case errors.Is(err, context.Canceled):
		return frame.OutcomeCancelled
	case DiedDuring(err) != nil:
		return "died"
	default:
		return "refused"
	}
}

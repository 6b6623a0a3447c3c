package suspended

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// NewPart returns the part that suspends sessions to a store, resumes them, and begins
// sessions as copies of others. Project is the folder that the sessions show, or empty.
func NewPart(states *store.Store, project string, log *slog.Logger) session.Part {
	return &part{states, project, log}
}

type part struct {
	store   *store.Store
	project string
	log     *slog.Logger
}

// key names a session of the call's environment in the store.
func (p *part) key(c call.Call, id string) store.Key {
	return store.Key{Principal: c.Principal, Session: id, Env: c.Env.Name, Project: p.project}
}

// Start implements [session.Part].
func (p *part) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	env := s.Call.Env
	if !env.Suspend || (env.MemoryMB+env.OverheadMB)<<20 > p.store.Limit {
		return next(ctx, s)
	}
	m := &member{part: p, key: p.key(s.Call, s.Call.Session)}
	var err error
	switch {
	case s.Former != nil: // the new sandbox gets files, and no state
		m.Member, err = next(ctx, s)
	case s.Call.From != "":
		m.Member, err = p.branch(ctx, s, next)
	default:
		m.Member, m.state, err = p.resume(ctx, s, next)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// resume starts the sandbox of a session from its state, and returns the state. If there
// is none, or it cannot be resumed, the session begins anew and the state is nil.
func (p *part) resume(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, *store.Slot, error) {
	state, err := p.find(p.key(s.Call, s.Call.Session))
	var inUse *store.InUseError
	switch {
	case errors.As(err, &inUse):
		return nil, nil, &call.InUseError{Session: s.Call.Session}
	case err != nil:
		p.log.Warn("cannot tell whether a session is suspended", "session", s.Call.Session, "error", err)
	}
	if state == nil {
		begun, err := next(ctx, s)
		return begun, nil, err
	}
	resumed := call.Resumed{}
	if head, _ := state.Head(); head != nil {
		resumed.After = time.Since(head.Saved)
	}
	s.Spec.From = state.Path()
	begun, err := next(ctx, s)
	if err == nil {
		s.Notes = append(s.Notes, resumed)
		return begun, state, nil
	}
	state.Close()
	var dead *sandbox.DeadError
	if ctx.Err() != nil || !errors.As(err, &dead) {
		return nil, nil, err
	}
	p.log.Error("a suspended session cannot be resumed, and begins anew", "session", s.Call.Session, "env", s.Call.Env.Name, "error", dead)
	resumed.Lost = dead.Error()
	s.Notes = append(s.Notes, resumed)
	s.Spec.From = ""
	begun, err = next(ctx, s)
	return begun, nil, err
}

// find acquires the state of a session, or returns nil if the session is not suspended.
func (p *part) find(key store.Key) (*store.Slot, error) {
	if !p.store.Has(key) {
		return nil, nil
	}
	state, err := p.store.Acquire(key)
	if err != nil || state.Path() != "" {
		return state, err
	}
	return nil, state.Remove() // it was resumed meanwhile
}

// branch starts the sandbox of a session that begins as a copy of another one.
func (p *part) branch(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	refused := func(reason call.BranchRefusal, problem error) error {
		return &call.BranchError{From: s.Call.From, Session: s.Call.Session, Reason: reason, Env: s.Call.Env.Name, Problem: problem}
	}
	if !s.Call.Env.Branch {
		return nil, refused(call.Branchless, nil)
	}
	state, err := p.store.Acquire(p.key(s.Call, s.Call.Session))
	if err != nil {
		return nil, refused(call.NoCopy, err)
	}
	if state.Path() != "" {
		state.Close()
		return nil, refused(call.Existing, nil)
	}
	defer p.remove(state)
	origin, notes, release, err := s.Borrow(ctx, s.Call.From, p.store.Has(p.key(s.Call, s.Call.From)))
	if err != nil {
		return nil, err
	}
	s.Spec.From = state.Next()
	if resumed := call.Find[call.Resumed](notes); resumed != nil && resumed.Lost != "" {
		err = errors.New(resumed.Lost)
	} else {
		_, err = saveState(ctx, origin.Sandbox(), s.Spec.From, true)
	}
	release()
	if err != nil {
		return nil, refused(call.NoCopy, err)
	}
	s.Notes = append(s.Notes, call.Branched{From: s.Call.From})
	return next(ctx, s)
}

// remove deletes a state that is not needed any more.
func (p *part) remove(state *store.Slot) {
	if err := state.Remove(); err != nil {
		p.log.Warn("the state of a session cannot be deleted", "session", state.Key.Session, "error", err)
	}
}

// saveState has a sandbox write its state to a folder.
func saveState(ctx context.Context, box sandbox.Sandbox, folder string, keep bool) (bytes int64, err error) {
	suspender, ok := box.(sandbox.Suspender)
	if !ok {
		return 0, errors.New("the sandbox cannot be suspended")
	}
	return suspender.Suspend(ctx, folder, keep)
}

// member is a sandbox that can be suspended.
type member struct {
	session.Member
	part *part
	key  store.Key

	mu sync.Mutex
	// state is what the sandbox was resumed from. It is nil as soon as a call has been
	// answered since, because then it is out of date.
	state *store.Slot
	// answered says that a call has been answered, and was not interrupted by the end of the server.
	answered bool
}

// Call implements [session.Member].
func (m *member) Call(ctx context.Context, c call.Call, request sandbox.Request) (call.Result, error) {
	result, err := m.Member.Call(ctx, c, request)
	if err == nil && result.Outcome != frame.OutcomeCancelled {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.answered = true
	}
	return result, err
}

// giveUp gives back a state that was not replaced. It goes if a call has been answered since: a
// session must not go on silently from before that.
func (m *member) giveUp(state *store.Slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answered {
		m.part.remove(state)
		return
	}
	state.Close()
}

// take returns the state that the sandbox was resumed from, once. It may be nil.
func (m *member) take() *store.Slot {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := m.state
	m.state = nil
	return state
}

// Settle implements [session.Member]. It deletes the old state, unless suspension is about
// to replace it.
func (m *member) Settle(ending bool) []func() {
	todo := m.Member.Settle(ending)
	if ending {
		return todo
	}
	if state := m.take(); state != nil {
		todo = append(todo, func() { m.part.remove(state) })
	}
	return todo
}

// CanSuspend implements [session.Member].
func (m *member) CanSuspend() bool { return true }

// Suspend implements [session.Member].
func (m *member) Suspend(ctx context.Context) (bytes int64, err error) {
	state := m.take()
	if state == nil {
		if state, err = m.part.store.Acquire(m.key); err != nil {
			return 0, err
		}
	}
	if bytes, err = saveState(ctx, m.Sandbox(), state.Next(), false); err == nil {
		err = state.CommitEarly(store.Head{Bytes: bytes})
	}
	if err != nil {
		m.giveUp(state)
		return 0, err
	}
	state.Close()
	return bytes, nil
}

// End implements [session.Member].
func (m *member) End(why call.Cause) {
	m.Member.End(why)
	switch state := m.take(); {
	case state == nil:
	case why == call.Closed:
		m.giveUp(state)
	default:
		go func() {
			defer guard.Recover(nil)
			m.part.remove(state)
		}()
	}
}

package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/suspended"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// lastSuspendsTimeout bounds the time in which sessions fall asleep when the server ends.
const lastSuspendsTimeout = 2 * time.Minute

// sleeps reports whether sessions of an environment sleep.
func (m *Manager) sleeps(env registry.Environment) bool {
	return m.Sleeping != nil && env.Suspend && m.Sleeping.Fits((env.MemoryMB+env.OverheadMB)<<20)
}

// stateKey names a session of an environment in the store.
func (m *Manager) stateKey(key call.Key, env string) suspended.Key {
	return suspended.Key{Principal: key.Principal, Session: key.ID, Env: env, Project: m.Project.Dir}
}

// only returns the sandbox of a session that can sleep; nil where it has none.
func (m *Manager) only(s *session) *member {
	for _, member := range s.members {
		if len(s.members) == 1 && m.sleeps(member.env) && !isClosed(member.Done()) {
			return member
		}
	}
	return nil
}

// fallAsleep has a session that nobody uses fall asleep, if it can. Calls that come
// meanwhile wait, and wake it.
func (m *Manager) fallAsleep(s *session) bool {
	if m.only(s) == nil || m.ending.Err() != nil {
		return false
	}
	_, suspend := m.beginSuspend(s)
	m.saves.Go(suspend)
	return true
}

// beginSuspend takes a turn of a session. When it has come, the caller calls suspend, which
// has the session fall asleep and gives the turn up.
func (m *Manager) beginSuspend(s *session) (turn chan struct{}, suspend func()) {
	turn = m.enqueue(s)
	settled := m.settle(s)
	return turn, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.suspend(s)
		settled()
		m.dequeue(s, turn)
	}
}

// suspend has the session fall asleep whose turn the caller has. A session that cannot
// lives on.
func (m *Manager) suspend(s *session) {
	member := m.only(s)
	if member == nil || isClosed(m.closed) {
		return
	}
	began, state := time.Now(), s.state
	s.state = nil
	m.mu.Unlock()
	bytes, err := m.write(s.key, member, state)
	m.mu.Lock()
	if err != nil {
		m.Log.Warn("session does not sleep", "session", s.key.ID, "env", member.env.Name, "error", err)
		return
	}
	m.Log.Info("session sleeps", "session", s.key.ID, "env", member.env.Name, "bytes", bytes, "ms", time.Since(began).Milliseconds(), "lived_ms", time.Since(s.started).Milliseconds())
	m.dismiss(s)
}

// makeSpace has sessions that nobody uses fall asleep while a principal may have no further
// one, the one that has been idle for longest first: the principal's own, or where all
// together are too many, of any. It returns what [Manager.isFull] returns then.
func (m *Manager) makeSpace(ctx context.Context, principal string) (most int, isFull bool) {
	for tried := map[*session]bool{}; ; {
		most, isFull = m.isFull(principal)
		if !isFull || m.ending.Err() != nil {
			return most, isFull
		}
		var idle *session
		isSettling := false
		for _, s := range m.sessions {
			switch {
			case tried[s] || m.only(s) == nil || m.live < m.Limits.Max && s.key.Principal != principal:
			case len(s.queue) > 0:
				isSettling = isSettling || len(s.queue) == s.settling
			case idle == nil || s.used.Before(idle.used):
				idle = s
			}
		}
		if idle == nil && !isSettling || ctx.Err() != nil {
			return most, isFull
		}
		if idle == nil { // others fall asleep already, or can in a moment
			settled := m.settled
			m.mu.Unlock()
			select {
			case <-settled:
			case <-ctx.Done():
			case <-m.ending.Done():
			}
			m.mu.Lock()
			continue
		}
		tried[idle] = true
		_, suspend := m.beginSuspend(idle)
		m.mu.Unlock()
		suspend()
		m.mu.Lock()
	}
}

// write writes the state of a session, whose sandbox ends. The state that it slept in
// before is nil where there is none.
func (m *Manager) write(key call.Key, member *member, state *suspended.State) (bytes int64, err error) {
	if state == nil {
		if state, err = m.Sleeping.Acquire(m.stateKey(key, member.env.Name)); err != nil {
			return 0, err
		}
	}
	defer state.Close()
	if bytes, err = member.Suspend(context.Background(), state.Next(), false); err != nil {
		return 0, err
	}
	return bytes, state.Commit(bytes)
}

// wake starts the sandbox of a session that sleeps, whose turn the caller has. It returns
// neither a sandbox nor an error where none sleeps, or where the one that does cannot go
// on, which woken then says.
func (m *Manager) wake(ctx context.Context, s *session, c call.Call) (box sandbox.Sandbox, woken *call.Woken, err error) {
	if !m.sleeps(c.Env) {
		return nil, nil, nil
	}
	state, err := m.Sleeping.Find(m.stateKey(s.key, c.Env.Name))
	var inUse *suspended.InUseError
	switch {
	case errors.As(err, &inUse):
		return nil, nil, &call.InUseError{Session: c.Session}
	case err != nil:
		m.Log.Warn("it is not known whether a session sleeps", "session", c.Session, "error", err)
		return nil, nil, nil
	case state == nil:
		return nil, nil, nil
	}
	spec := m.Spec(c)
	spec.From = state.Folder()
	box, err = start(ctx, m.Starter, spec)
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		s.state = state
		return box, &call.Woken{Slept: time.Since(state.Suspended())}, nil
	}
	state.Close()
	var dead *sandbox.DeadError
	if ctx.Err() != nil || !errors.As(err, &dead) {
		return nil, nil, err
	}
	m.Log.Error("a session that slept cannot go on, and begins anew", "session", c.Session, "env", c.Env.Name, "error", dead)
	return nil, &call.Woken{Slept: time.Since(state.Suspended()), Lost: dead.Error()}, nil
}

// removeState deletes what a session slept in.
func (m *Manager) removeState(key call.Key, state *suspended.State) {
	if err := state.Remove(); err != nil {
		m.Log.Warn("what a session slept in cannot be deleted", "session", key.ID, "error", err)
	}
}

// Suspend has every session fall asleep that can, because the server ends: calls that run
// in them are interrupted, and all calls that come later fail with [sandbox.ErrClosed].
// [Manager.Close] follows it.
func (m *Manager) Suspend() {
	if m.Sleeping == nil {
		return
	}
	m.mu.Lock()
	m.stop()
	var all sync.WaitGroup
	for _, s := range m.sessions {
		if m.only(s) != nil {
			turn, suspend := m.beginSuspend(s)
			all.Go(func() {
				<-turn // calls that wait are refused, and the one that runs has a limit
				suspend()
			})
		}
	}
	m.mu.Unlock()
	sandbox.WaitWithin(&all, lastSuspendsTimeout)
}

// startBranch starts the sandbox of a session that begins as a copy of another one.
func (m *Manager) startBranch(ctx context.Context, s *session, c call.Call) (sandbox.Sandbox, error) {
	refused := func(reason call.BranchRefusal, problem error) error {
		return &call.BranchError{From: c.From, Session: c.Session, Reason: reason, Env: c.Env.Name, Problem: problem}
	}
	if !m.sleeps(c.Env) || !c.Env.Branch {
		return nil, refused(call.Branchless, nil)
	}
	state, err := m.Sleeping.Acquire(m.stateKey(s.key, c.Env.Name))
	if err != nil {
		return nil, refused(call.NoCopy, err)
	}
	if state.Folder() != "" {
		state.Close()
		return nil, refused(call.Existing, nil)
	}
	defer m.removeState(s.key, state)
	folder := state.Next()
	if reason, err := m.copyTo(ctx, folder, c); reason != "" || err != nil {
		if reason == "" {
			return nil, err
		}
		return nil, refused(reason, err)
	}
	spec := m.Spec(c)
	spec.From = folder
	return start(ctx, m.Starter, spec)
}

// copyTo writes the state of the session that a call branches, which goes on.
func (m *Manager) copyTo(ctx context.Context, folder string, c call.Call) (call.BranchRefusal, error) {
	origin := c
	origin.Session, origin.From = c.From, ""
	m.mu.Lock()
	s := m.sessions[origin.Key()]
	switch {
	case s != nil && len(s.queue) > s.settling:
		m.mu.Unlock()
		return call.Busy, nil
	case s == nil && !m.Sleeping.Has(m.stateKey(origin.Key(), c.Env.Name)):
		m.mu.Unlock()
		return call.Unknown, nil
	case s == nil:
		s = m.newSession(origin.Key())
	}
	turn := m.enqueue(s)
	m.mu.Unlock()
	defer m.release(s, turn)
	select {
	case <-turn: // at once, unless it settles
	case <-ctx.Done():
		return "", ctx.Err()
	}
	box, began, err := m.lease(ctx, s, origin)
	if err != nil {
		return "", err
	}
	if began.Woken != nil && began.Woken.Lost != "" {
		return call.NoCopy, errors.New(began.Woken.Lost)
	}
	if _, err := box.Suspend(ctx, folder, true); err != nil {
		return call.NoCopy, err
	}
	return "", nil
}

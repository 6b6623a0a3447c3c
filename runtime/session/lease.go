package session

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// lease returns the member of a session that runs a call, and starts it if necessary. The
// caller has the session's turn.
func (m *Manager) lease(ctx context.Context, s *session, c call.Call) (*member, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endIfOver(s)
	one, former, err := m.find(s, c)
	if one != nil {
		s.calls++
	}
	if one != nil || err != nil {
		return one, err
	}
	if former != nil && m.grow(ctx, s, former, c) {
		return former, nil
	}
	if former == nil {
		if most, isFull := m.makeRoom(ctx, c.Principal); isFull {
			return nil, m.full(c.Principal, most)
		}
	}
	m.count(c.Principal, 1)
	m.mu.Unlock()
	began := time.Now()
	err = guard.ErrPanic
	_ = guard.Run(func() { one, err = m.start(ctx, s, c, former) }) // the lock is not held, and is given up later
	m.mu.Lock()
	if m.ending.Err() != nil {
		if err == nil {
			one.End(call.Closed)
		}
		err = sandbox.ErrClosed
	}
	if err != nil {
		m.count(c.Principal, -1)
		// The session did not begin, or its other sandboxes died meanwhile.
		if m.endIfOver(s); len(s.members) == 0 {
			s.closeWorkspace()
		}
		return nil, err
	}
	if len(s.members) == 0 {
		s.started, s.calls = began, 0
	}
	s.calls++
	if former != nil {
		delete(s.members, former.env.Name)
		m.count(c.Principal, -1)
		former.End("")
	}
	one.restart = m.takeRestart(s, c.Env.Name)
	s.members[c.Env.Name] = one
	s.last, s.used = c.Env.Name, time.Now()
	m.Log.Info("session started", "session", c.Session, "env", c.Env.Name, "ms", time.Since(began).Milliseconds())
	one.Sandbox().OnEnd(func() { m.sandboxEnded(s) })
	return one, nil
}

// grow has a member of a session become one of a larger environment, and reports whether it has. Otherwise
// another sandbox has to take its place. The caller has the lock, which is not held meanwhile.
func (m *Manager) grow(ctx context.Context, s *session, one *member, c call.Call) bool {
	grower, ok := one.Sandbox().(sandbox.Grower)
	if !ok || one.isDead() {
		return false
	}
	m.mu.Unlock()
	began := time.Now()
	err := guard.ErrPanic
	_ = guard.Run(func() { err = grower.Grow(ctx, c.Env.SessionExec) })
	m.mu.Lock()
	if err != nil {
		m.Log.Info("session cannot get packages as it is", "session", c.Session, "env", c.Env.Name, "error", err)
		return false
	}
	if s.members[one.env.Name] != one || m.ending.Err() != nil {
		return false // it has ended meanwhile
	}
	delete(s.members, one.env.Name)
	one.env = c.Env
	s.members[c.Env.Name] = one
	s.last = c.Env.Name
	s.calls++
	m.Log.Info("session got packages", "session", c.Session, "env", c.Env.Name, "ms", time.Since(began).Milliseconds())
	return true
}

// find returns the member of a session that can run a call, or the member that a new sandbox is to
// replace. If both are nil, the session needs a further sandbox.
func (m *Manager) find(s *session, c call.Call) (one, former *member, err error) {
	if c.From != "" && len(s.members) > 0 {
		return nil, nil, &call.BranchError{From: c.From, Session: c.Session, Reason: call.Existing}
	}
	one = s.members[c.Env.Name]
	conflict := one == nil && len(s.members) > 0 && s.workspace == nil
	for _, member := range s.members {
		if one != nil {
			break
		}
		// A call may name fewer packages than the sandbox has: it may have been accepted before an
		// earlier one added some.
		switch has := member.env; {
		case has.BaseName() != c.Env.BaseName():
		case has.Includes(c.Env):
			one = member
		case c.Env.Includes(has):
			former, conflict = member, false
		default:
			conflict = true
		}
	}
	switch {
	case one != nil:
		s.last = one.env.Name
		return one, nil, nil
	case conflict:
		return nil, nil, &call.OtherEnvError{Session: c.Session, Has: s.environments(), Wanted: c.Env.Name}
	}
	return nil, former, nil
}

// start starts a sandbox for a session, and before that a workspace if the session needs
// one.
func (m *Manager) start(ctx context.Context, s *session, c call.Call, former *member) (*member, error) {
	ctx, stop := m.untilEnding(ctx)
	defer stop()
	start := &Start{Call: c, Spec: m.Spec(c), manager: m}
	if former != nil {
		start.Former = former.Member
	}
	if m.Workspaces != nil {
		m.mu.Lock()
		start.Spec.Workspace = s.workspace
		m.mu.Unlock()
		if start.Spec.Workspace == nil {
			workspace, err := m.Workspaces.Workspace(ctx, start.Spec)
			if err != nil {
				return nil, startError(ctx, start.Spec, err)
			}
			m.mu.Lock()
			s.workspace, start.Spec.Workspace = workspace, workspace
			m.mu.Unlock()
		}
	}
	started, err := m.startMember(ctx, start)
	if err != nil {
		return nil, err
	}
	return &member{Member: started, env: c.Env, notes: start.Notes}, nil
}

// startPlain starts a sandbox without any parts.
func (m *Manager) startPlain(ctx context.Context, s *Start) (Member, error) {
	if s.Call.From != "" && s.Spec.From == "" {
		return nil, &call.BranchError{From: s.Call.From, Session: s.Call.Session, Env: s.Call.Env.Name, Reason: call.Branchless}
	}
	box, err := start(ctx, m.Starter, s.Spec)
	if err != nil {
		return nil, err
	}
	return plain{box}, nil
}

func start(ctx context.Context, starter sandbox.Starter, spec sandbox.Spec) (sandbox.Sandbox, error) {
	box, err := starter.Start(ctx, spec)
	if err != nil {
		return nil, startError(ctx, spec, err)
	}
	return box, nil
}

// startError returns the error of a call whose sandbox did not start. The end of the
// call or of the server is not the environment's fault.
func startError(ctx context.Context, spec sandbox.Spec, err error) error {
	if ctx.Err() != nil || errors.Is(err, sandbox.ErrClosed) {
		return err
	}
	return &call.StartError{Env: spec.Name, Err: err}
}

// count adds n to the sandboxes of a principal's sessions.
func (m *Manager) count(principal string, n int) {
	m.live += n
	if m.liveEach[principal] += n; m.liveEach[principal] == 0 {
		delete(m.liveEach, principal)
	}
}

// isFull reports whether a principal may have no further sandbox, and the bound that it
// has reached: its own or that of all sessions.
func (m *Manager) isFull(principal string) (most int, isFull bool) {
	if m.Limits.MaxEach != nil {
		if most = m.Limits.MaxEach(principal); m.liveEach[principal] >= most {
			return most, true
		}
	}
	return m.Limits.Max, m.live >= m.Limits.Max
}

// full returns the error of a session beyond a bound.
func (m *Manager) full(principal string, most int) error {
	full := &call.FullError{Max: most}
	for key, s := range m.sessions {
		if len(s.members) > 0 && len(s.queue) == s.settling && key.Principal == principal {
			full.Idle = append(full.Idle, call.IdleSession{ID: key.ID, Env: s.environments(), Idle: time.Since(s.used)})
		}
	}
	slices.SortFunc(full.Idle, func(a, b call.IdleSession) int { return int(b.Idle - a.Idle) })
	return full
}

package session

import (
	"context"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// lastSuspendsTimeout bounds the suspension of all sessions when the server ends.
const lastSuspendsTimeout = 2 * time.Minute

// suspendable returns the only member of a session, if it can be suspended, or nil.
func suspendable(s *session) *member {
	for _, member := range s.members {
		if len(s.members) == 1 && s.visits == 0 && member.CanSuspend() && !member.isDead() {
			return member
		}
	}
	return nil
}

// suspendIdle begins to suspend an idle session, and reports whether that is possible.
// Calls that come meanwhile wait, and resume it.
func (m *Manager) suspendIdle(s *session) bool {
	if suspendable(s) == nil || m.ending.Err() != nil {
		return false
	}
	_, suspend := m.beginSuspend(s)
	m.settling.Go(suspend)
	return true
}

// beginSuspend takes a turn of a session. When it has come, the caller calls suspend, which
// suspends the session and gives the turn up.
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

// suspend suspends a session whose turn the caller has. If that fails, the session keeps
// running.
func (m *Manager) suspend(s *session) {
	one := suspendable(s)
	if one == nil || isClosed(m.closed) {
		return
	}
	began := time.Now()
	m.mu.Unlock()
	bytes, err := int64(0), guard.ErrPanic
	_ = guard.Run(func() { bytes, err = one.Suspend(context.Background()) }) // the lock is not held, and is given up later
	m.mu.Lock()
	if err != nil {
		m.Log.Warn("session not suspended", "session", s.key.ID, "env", one.env.Name, "error", err)
		return
	}
	m.Log.Info("session suspended", "session", s.key.ID, "env", one.env.Name, "bytes", bytes, "ms", time.Since(began).Milliseconds(), "lived_ms", time.Since(s.started).Milliseconds())
	m.dismiss(s, call.Suspended)
}

// makeRoom suspends idle sessions until a principal may have a further sandbox, starting
// with the one that has been idle for longest. These are the principal's own sessions,
// unless all sessions together are too many. It returns the result of [Manager.isFull].
func (m *Manager) makeRoom(ctx context.Context, principal string) (most int, isFull bool) {
	for tried := map[*session]bool{}; ; {
		most, isFull = m.isFull(principal)
		if !isFull || m.ending.Err() != nil {
			return most, isFull
		}
		var idle *session
		isSettling := false
		for _, s := range m.sessions {
			switch {
			case tried[s] || suspendable(s) == nil || m.live < m.Limits.Max && s.key.Principal != principal:
			case len(s.queue) > 0:
				isSettling = isSettling || len(s.queue) == s.settling
			case idle == nil || s.used.Before(idle.used):
				idle = s
			}
		}
		if idle == nil && !isSettling || ctx.Err() != nil {
			return most, isFull
		}
		if idle == nil { // others are being suspended, or can be in a moment
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

// Suspend suspends all sessions that can be, because the server ends. Calls that run in
// them are interrupted, and all later calls fail with [sandbox.ErrClosed]. The caller calls
// [Manager.Close] next.
func (m *Manager) Suspend() {
	m.mu.Lock()
	m.stop()
	var all sync.WaitGroup
	for _, s := range m.sessions {
		if suspendable(s) != nil {
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

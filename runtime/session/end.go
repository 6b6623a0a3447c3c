package session

import (
	"slices"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
)

// maxEnded bounds the ended sessions that are remembered, to tell their next call why it
// begins anew.
const maxEnded = 1024

// endIfOver ends a session if all its sandboxes died or its lifetime is over. Otherwise it
// drops those sandboxes that died.
func (m *Manager) endIfOver(s *session) {
	if len(s.members) == 0 {
		return
	}
	var dead []string
	for name, member := range s.members {
		if member.isDead() {
			dead = append(dead, name)
		}
	}
	if len(dead) == len(s.members) {
		m.end(s, call.Restart{Cause: call.Died})
		return
	}
	for _, name := range dead {
		s.members[name].End(call.Died)
		delete(s.members, name)
		s.died[name] = true
		m.count(s.key.Principal, -1)
	}
	if time.Since(s.started) >= m.Limits.Lifetime {
		m.end(s, call.Restart{Cause: call.Lifetime, After: m.Limits.Lifetime})
	}
}

// sandboxEnded ends a session if its last sandbox died while the session was idle. A call
// that runs in the sandbox finds out by itself.
func (m *Manager) sandboxEnded(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The sandbox that ended may be an earlier one.
	if len(s.members) == 0 || len(s.queue) > 0 {
		return
	}
	m.endIfOver(s)
	if len(s.members) == 0 {
		delete(m.sessions, s.key)
	}
}

// startTimer suspends or ends an idle session when its idle time is over, and ends it at
// its lifetime.
func (m *Manager) startTimer(s *session) {
	wait, why := m.Limits.Idle, call.Restart{Cause: call.Idle, After: m.Limits.Idle}
	if left := time.Until(s.started.Add(m.Limits.Lifetime)); left < wait {
		wait, why = left, call.Restart{Cause: call.Lifetime, After: m.Limits.Lifetime}
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		defer guard.Recover(nil)
		m.mu.Lock()
		defer m.mu.Unlock()
		// A call may have come, and even gone, while the timer fired.
		switch {
		case s.timer != timer:
		case why.Cause == call.Idle && s.visits > 0:
			m.startTimer(s)
		case why.Cause == call.Idle && m.suspendIdle(s):
		default:
			m.end(s, why)
			delete(m.sessions, s.key)
		}
	})
	s.timer = timer
}

func (s *session) stopTimer() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

// end takes the sandboxes from a session and remembers why.
func (m *Manager) end(s *session, why call.Restart) {
	m.Log.Info("session ended", "session", s.key.ID, "env", s.environments(), "why", why.Cause, "lived_ms", time.Since(s.started).Milliseconds())
	m.dismiss(s, why.Cause)
	m.remember(s.key, why)
}

// dismiss takes the sandboxes from a session.
func (m *Manager) dismiss(s *session, why call.Cause) {
	s.stopTimer()
	for _, member := range s.members {
		member.End(why)
		m.count(s.key.Principal, -1)
	}
	clear(s.members)
	clear(s.died)
	s.closeWorkspace()
}

func (s *session) closeWorkspace() {
	if s.workspace != nil {
		s.workspace.Close()
		s.workspace = nil
	}
}

func (m *Manager) remember(key call.Key, why call.Restart) {
	if _, known := m.ended[key]; !known {
		m.order = append(m.order, key)
	}
	m.ended[key] = why
	if len(m.order) > maxEnded {
		oldest := m.order[m.oldestOfMost()]
		delete(m.ended, oldest)
		m.order = slices.DeleteFunc(m.order, func(other call.Key) bool { return other == oldest })
	}
}

// oldestOfMost returns the index of the oldest session of the principal with the most remembered
// sessions, so that a principal who begins many forgets its own.
func (m *Manager) oldestOfMost() int {
	count, most := map[string]int{}, ""
	for _, key := range m.order {
		if count[key.Principal]++; count[key.Principal] > count[most] {
			most = key.Principal
		}
	}
	return slices.IndexFunc(m.order, func(key call.Key) bool { return key.Principal == most })
}

// takeRestart returns why a session, or its sandbox of an environment, ended before. It
// returns nil if neither did, or if it has returned that before.
func (m *Manager) takeRestart(s *session, env string) *call.Restart {
	if s.died[env] {
		delete(s.died, env)
		return &call.Restart{Cause: call.Died, FilesKept: true}
	}
	why, known := m.ended[s.key]
	if !known {
		return nil
	}
	delete(m.ended, s.key)
	m.order = slices.DeleteFunc(m.order, func(other call.Key) bool { return other == s.key })
	return &why
}

// Remember takes over the sessions of a server that has ended, so that their next calls are
// told.
func (m *Manager) Remember(keys []call.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		m.remember(key, call.Restart{Cause: call.Replaced})
	}
}

// Ended returns the sessions that ended with this server, or with an earlier one, and whose
// next call has not been told. Call it after [Manager.Close].
func (m *Manager) Ended() []call.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.order), func(key call.Key) bool {
		cause := m.ended[key].Cause
		return cause != call.Closed && cause != call.Replaced
	})
}

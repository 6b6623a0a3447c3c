package session

import (
	"context"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

const (
	// roomEvery is the time between two looks at the machine's memory. What a session gives back
	// counts at the next.
	roomEvery = 5 * time.Second
	// leastIdle is how long a session has been idle before its memory may be taken.
	leastIdle = time.Minute
)

// KeepRoom suspends idle sessions, or ends them, while the machine is short of memory, until ctx ends:
// those that have been idle for longest go first, one at a time.
func (m *Manager) KeepRoom(ctx context.Context, isShort func() bool) {
	ticker := time.NewTicker(roomEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		case <-m.ending.Done():
			return
		}
		m.mu.Lock()
		if s := m.longestIdle(); s != nil {
			m.mu.Unlock()
			short := isShort()
			m.mu.Lock()
			// A call may have come meanwhile.
			if short && m.longestIdle() == s && !m.suspendIdle(s) {
				m.end(s, call.Restart{Cause: call.NoMemory})
				delete(m.sessions, s.key)
			}
		}
		m.mu.Unlock()
	}
}

// longestIdle returns the session that has been idle for longest, and for long enough, or nil.
func (m *Manager) longestIdle() (longest *session) {
	for _, s := range m.sessions {
		isIdle := len(s.members) > 0 && len(s.queue) == 0 && s.visits == 0 && time.Since(s.used) >= leastIdle
		if isIdle && (longest == nil || s.used.Before(longest.used)) {
			longest = s
		}
	}
	return longest
}

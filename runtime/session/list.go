package session

import (
	"cmp"
	"slices"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

// Live is a session that lives.
type Live struct {
	Key call.Key
	// Environments are those that it has sandboxes of.
	Environments string
	// Calls is how many calls run or wait in it.
	Calls   int
	Started time.Time
	// Used is when its last call ended, or began where one runs.
	Used time.Time
	// MemoryMB is what its sandboxes may use, in MiB.
	MemoryMB int64
}

// List returns the sessions that live, in the order of their names.
func (m *Manager) List() []Live {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Live
	for key, s := range m.sessions {
		if len(s.members) == 0 {
			continue
		}
		l := Live{Key: key, Environments: s.environments(), Calls: len(s.queue), Started: s.started, Used: s.used}
		for _, member := range s.members {
			l.MemoryMB += member.env.MemoryMB
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b Live) int {
		return cmp.Or(cmp.Compare(a.Key.Principal, b.Key.Principal), cmp.Compare(a.Key.ID, b.Key.ID))
	})
	return all
}

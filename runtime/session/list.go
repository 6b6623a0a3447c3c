package session

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// Live is a live session.
type Live struct {
	Key call.Key
	// Environments are the names of its sandboxes' environments, joined with +.
	Environments string
	// Calls is how many calls it has had, including running ones, and Waiting how many run or wait.
	Calls   uint64
	Waiting int
	Started time.Time
	// Used is when its last call ended, or when the call that is running began.
	Used time.Time
	// MemoryMB is what its sandboxes may use, in MiB.
	MemoryMB int64
}

// List returns the live sessions, sorted by principal and name.
func (m *Manager) List() []Live {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Live
	for key, s := range m.sessions {
		if len(s.members) == 0 {
			continue
		}
		l := Live{Key: key, Environments: s.environments(), Calls: s.calls, Waiting: len(s.queue), Started: s.started, Used: s.used}
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

// Environments returns the environments that the sandboxes of a live session were started
// from. They do not change when the registry's do.
func (m *Manager) Environments(key call.Key) []registry.Environment {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[key]
	if s == nil {
		return nil
	}
	var all []registry.Environment
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		all = append(all, s.members[name].env)
	}
	return all
}

// Beside says that a program begins in the sandbox of a live session's environment, beside its calls.
// The caller calls done when that has ended.
func (m *Manager) Beside(key call.Key, env string) (done func(context.Context) (remarks []string)) {
	m.mu.Lock()
	var one *member
	if s := m.sessions[key]; s != nil {
		one = s.members[env]
	}
	m.mu.Unlock()
	if one == nil {
		return func(context.Context) []string { return nil }
	}
	return one.Beside()
}

// Visit returns the sandbox of a live session's environment, by default that of the last call,
// and the environment. It does not wait for the session's calls. Until leave is
// called, the session neither ends nor is suspended because it is idle. If there is no such
// sandbox, the error is a [*call.NoSessionError], or a [*call.OtherEnvError] with another one.
func (m *Manager) Visit(key call.Key, env string) (box sandbox.Sandbox, in registry.Environment, leave func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[key]
	if s == nil || len(s.members) == 0 {
		return nil, in, nil, &call.NoSessionError{Session: key.ID}
	}
	one := s.members[cmp.Or(env, s.last)]
	if one == nil || one.isDead() {
		return nil, in, nil, &call.OtherEnvError{Session: key.ID, Has: s.environments(), Wanted: cmp.Or(env, s.last)}
	}
	s.visits++
	return one.Sandbox(), one.env, sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		s.visits--
	}), nil
}

// Sandbox waits for the turn of a ticket and returns a sandbox that has the session's
// files. The caller may use it until the ticket is released. If the session is not live,
// the error is a [*call.NoSessionError].
func (m *Manager) Sandbox(ctx context.Context, ticket *call.Ticket) (sandbox.Sandbox, error) {
	s, err := m.wait(ctx, ticket)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endIfOver(s)
	// The sandbox of the last call may have died.
	for _, name := range append([]string{s.last}, slices.Sorted(maps.Keys(s.members))...) {
		if one := s.members[name]; one != nil {
			return one.Sandbox(), nil
		}
	}
	return nil, &call.NoSessionError{Session: ticket.Key.ID}
}

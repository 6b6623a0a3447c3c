package gate

import (
	"context"
	"sync"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

// member is a sandbox of a session whose code can call tools.
type member struct {
	session.Member
	leave func()
}

// End implements [session.Member].
func (m member) End(why call.Cause) {
	m.Member.End(why)
	m.leave()
}

// Start implements [session.Part]: the processes that only a session has end with the last of its
// sandboxes, and not later with those that nothing calls.
func (g *Gate) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	m, err := next(ctx, s)
	if err != nil || g.catalog.of(s.Call.Env.SessionExec) == nil {
		return m, err
	}
	owner := ownOf(s.Call)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sessions[owner]++
	return member{m, sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.sessions[owner]--; g.sessions[owner] == 0 {
			delete(g.sessions, owner)
			go g.servers.endOwner(owner)
		}
	})}, nil
}

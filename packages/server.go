package packages

import (
	"context"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// Server is what a server has of this package: the catalog, the executor, and the environments
// that calls use, for which sandboxes are kept started.
type Server struct {
	Catalog
	options Options
	inUse   *inUse
}

// NewServer returns a Server. An environment is in use until idle has passed since its last call.
func NewServer(o Options, idle time.Duration) *Server {
	s := &Server{Catalog: Catalog{o.Folder}, options: o, inUse: newInUse(idle)}
	s.options.Used = s.inUse.use
	return s
}

// Executor returns an executor in front of next. Turn is that of [Options].
func (s *Server) Executor(next call.Executor, turn func(ctx context.Context, principal string) (done func(), err error)) call.Executor {
	o := s.options
	o.Turn = turn
	return NewExecutor(next, o)
}

// Environments returns the environments in use.
func (s *Server) Environments() []registry.Environment { return s.inUse.environments() }

// Subscribe has changed called after each change of the environments in use, until stop is called.
func (s *Server) Subscribe(changed func()) (stop func()) { return s.inUse.subscribe(changed) }

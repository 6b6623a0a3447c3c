package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/server"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
)

const (
	// maxProcesses bounds the tool servers that run at a time.
	maxProcesses = 64
	// shares is how many principals at a time can have a tool server, whatever the others have.
	shares = 32
	// idleTimeout is how long a tool server runs without a call.
	idleTimeout = 10 * time.Minute
	// retryAfter is how long a server that did not start is not tried again.
	retryAfter = 2 * time.Second
)

// errTooMany reports a server that cannot be started beside the others.
var errTooMany = errors.New("too many tool servers run: try again when others have been idle")

// servers are the tool servers that run, each started by the first call that needs it.
type servers struct {
	log    *slog.Logger
	ctx    context.Context // of all of them
	end    context.CancelFunc
	start  func(context.Context, server.Spec, *slog.Logger) (*server.Client, error)
	ending sync.WaitGroup

	mu  sync.Mutex
	all map[key]*process
}

// key names a process: those who share it have the same.
type key struct{ server, owner string }

// process is a tool server that runs, starts or has failed.
type process struct {
	principal string        // of the first call; empty if all principals share it
	started   chan struct{} // closed when client or err is set
	client    *server.Client
	err       error
	slots     *account.Pool // of calls at a time, in which principals take turns
	users     int           // under servers.mu
	idle      *time.Timer
}

func newServers(log *slog.Logger) *servers {
	s := &servers{log: log, all: map[key]*process{}, start: start}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// use returns the process of a key, which it starts if it has to, when there is room for a call.
// The caller calls done after the call.
func (s *servers) use(ctx context.Context, k key, principal string, spec *Server) (client *server.Client, done func(), err error) {
	p, err := s.process(ctx, k, principal, spec)
	if err != nil {
		return nil, nil, err
	}
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.users--; p.users == 0 {
			p.idle.Reset(idleTimeout)
		}
	}
	select {
	case <-p.started:
	case <-ctx.Done():
		leave()
		return nil, nil, ctx.Err()
	}
	if p.err != nil {
		leave()
		return nil, nil, p.err
	}
	release, err := p.slots.Take(ctx, principal, 1)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return p.client, func() { release(); leave() }, nil
}

func (s *servers) process(ctx context.Context, k key, principal string, spec *Server) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A run that has ended starts no process: endOwner may have looked already.
	if err := cmp.Or(s.ctx.Err(), ctx.Err()); err != nil {
		return nil, err
	}
	p := s.all[k]
	if p == nil || p.hasEnded() {
		if k.owner == "" {
			principal = "" // everybody's
		}
		calls := account.Terms{Total: int64(spec.AtOnce), Least: int64(spec.AtOnce)}
		if !s.hasRoom(principal) {
			return nil, errTooMany
		}
		p = &process{principal: principal, started: make(chan struct{}), slots: account.NewPool(calls)}
		p.idle = time.AfterFunc(idleTimeout, func() { s.endIdle(k, p) })
		s.all[k] = p
		s.ending.Go(func() { s.run(k, p, spec.Spec) })
	}
	p.users++
	p.idle.Stop()
	return p, nil
}

// hasRoom reports whether a principal may have one process more. A place is kept for each principal
// that has no process, up to shares of them; of the others it may take at most half of those that
// are left. Processes that all share may take any place.
func (s *servers) hasRoom(principal string) bool {
	counts := map[string]int{}
	for _, p := range s.all {
		if p.principal != "" {
			counts[p.principal]++
		}
	}
	left, own := maxProcesses-len(s.all), counts[principal]
	if principal == "" || own == 0 {
		return left > 0
	}
	return own-1 < left-max(0, shares-len(counts))
}

// run starts a process, and forgets it when it has ended.
func (s *servers) run(k key, p *process, spec server.Spec) {
	defer guard.Recover(nil)
	began := time.Now()
	if err := guard.Run(func() { p.client, p.err = s.start(s.ctx, spec, s.log) }); err != nil {
		p.err = err
	}
	close(p.started)
	if p.err != nil {
		s.log.Error("a tool server did not start", "server", k.server, "error", p.err)
		select {
		case <-time.After(retryAfter):
		case <-s.ctx.Done():
		}
	} else {
		s.log.Info("a tool server started", "server", k.server, "principal", k.owner, "ms", time.Since(began).Milliseconds())
		select {
		case <-p.client.Ended():
		case <-s.ctx.Done():
		}
		p.client.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[k] == p {
		delete(s.all, k)
	}
	p.idle.Stop()
}

// hasEnded reports whether a process has ended that had started.
func (p *process) hasEnded() bool {
	select {
	case <-p.started:
	default:
		return false
	}
	if p.client == nil {
		return false
	}
	select {
	case <-p.client.Ended():
		return true
	default:
		return false
	}
}

// endIdle ends a process that is not in use.
func (s *servers) endIdle(k key, p *process) {
	s.mu.Lock()
	idle := p.users == 0 && s.all[k] == p
	s.mu.Unlock()
	select {
	case <-p.started:
	default:
		idle = false
	}
	if idle && p.client != nil {
		p.client.Close()
	}
}

// endOwner ends the processes of an owner.
func (s *servers) endOwner(owner string) {
	defer guard.Recover(nil)
	s.mu.Lock()
	var own []*process
	for k, p := range s.all {
		if k.owner == owner {
			own = append(own, p)
		}
	}
	s.mu.Unlock()
	for _, p := range own {
		<-p.started
		if p.client != nil {
			p.client.Close()
		}
	}
}

// close ends all processes and waits for that.
func (s *servers) close() {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	s.ending.Wait()
}

// changed says that a tool is not as the lock file has it; nil if it is.
func changed(client *server.Client, name string, tool *Tool) error {
	now, found := client.Hash(name)
	switch {
	case !found:
		return errors.New("its server does not have it any more: the user looks at it and runs nix-sandbox-mcp tools lock")
	case now != tool.Hash:
		return fmt.Errorf("its server describes it otherwise than tools.lock.json does, so it is off: the user looks at the change and runs nix-sandbox-mcp tools lock")
	}
	return nil
}

// start starts a server. What its tools are is known from the lock file.
func start(ctx context.Context, spec server.Spec, log *slog.Logger) (*server.Client, error) {
	client, _, err := server.Start(ctx, spec, log)
	return client, err
}

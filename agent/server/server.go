// Package server is the agent's side of the frame protocol: it takes requests
// from the runtime, runs code in the sandbox's interpreter, one call at a time in
// the order of arrival, and answers each call exactly once.
//
// Two goroutines share the work. One reads requests (requests.go) and answers those that
// need no interpreter: read, ping, an interrupt of a waiting call. The other, the executor
// (executor.go), is the only one that touches the interpreter. lifecycle.go has the
// interpreter's phases.
package server

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/asking"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interactive"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/output"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Config is what a server needs.
type Config struct {
	Spec interpreter.Spec // Null, Stdout and Stderr are the server's own
	// Keeper enforces the limits of the sandbox; nil if there are none.
	Keeper *limitkeeper.Keeper
	// Asks is the socket at which code asks the server, or "" for none.
	Asks string
	In   io.ReadCloser
	Out  io.Writer
	Log  io.Writer
}

// Server serves one sandbox.
type Server struct {
	table    *process.Table
	spec     interpreter.Spec
	root     workspace.Root // the reader's; the executor has its own
	out      *frame.Writer
	log      io.Writer
	queue    chan task
	stop     context.CancelCauseFunc
	keeper   *limitkeeper.Keeper                  // nil if there are no limits
	crossing atomic.Pointer[limitkeeper.Crossing] // not taken by the executor yet
	pings    pings
	visits   *interactive.Visits
	asking   *asking.Asking // nil if code asks nothing
	look     workspace.Look
	looks    chan struct{} // of one look at a time

	mu    sync.Mutex
	calls map[uint64]*call // waiting or running
	code  int              // bytes of waiting code
	// working counts calls and programs that run. programs are those beside calls, by the id of their streams, and
	// beside says that there was one.
	working  int
	programs map[uint64]struct{}
	beside   bool
}

// Serve answers requests until the stream ends or ctx is done, and then ends the
// interpreter. It closes cfg.In.
func Serve(ctx context.Context, table *process.Table, cfg Config) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s := &Server{
		table:  table,
		spec:   cfg.Spec,
		root:   workspace.Root{Path: cfg.Spec.Root},
		out:    frame.NewWriter(cfg.Out),
		log:    cfg.Log,
		queue:  make(chan task, maxWaiting),
		stop:   stop,
		keeper: cfg.Keeper,
		calls:  map[uint64]*call{},

		programs: map[uint64]struct{}{},
	}
	s.pings.answer = s.pong
	s.visits = interactive.NewVisits(table, cfg.Spec, s.visited)
	s.look, s.looks = workspace.Look{Root: s.root}, make(chan struct{}, 1)
	if err := s.out.Write(frame.Reply{Type: frame.Ready, Protocol: frame.Protocol}); err != nil {
		return err
	}
	if cfg.Asks != "" {
		var err error
		if s.asking, err = asking.Listen(cfg.Asks, s.out.Write); err != nil {
			return err
		}
		defer s.asking.Close()
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	s.spec.Null = null
	// The agent keeps the writing ends open for the next interpreter.
	var stdout, stderr *output.Stream
	if stdout, s.spec.Stdout, err = output.New(); err != nil {
		return err
	}
	if stderr, s.spec.Stderr, err = output.New(); err != nil {
		return err
	}
	var owned sync.WaitGroup
	for _, stream := range []*output.Stream{stdout, stderr} {
		owned.Go(stream.Read)
	}
	owned.Go(func() {
		defer stop(nil)
		if err := s.requests(cfg.In); err != nil {
			s.logf("requests: %v", err)
		}
	})
	e := &executor{
		Server: s,
		stdout: stdout, stderr: stderr,
		root: workspace.Root{Path: s.spec.Root},
	}
	e.root.Changed() // what is there before the first call
	e.files.tracker.Root = e.root
	if s.keeper != nil {
		owned.Go(func() {
			if err := s.keeper.Run(ctx, s.crossed); err != nil {
				stop(err)
			}
		})
	}
	err = e.run(ctx)
	stop(nil)
	s.visits.Close()
	if cause := context.Cause(ctx); err == nil && cause != context.Canceled {
		err = cause
	}
	for _, c := range []io.Closer{cfg.In, stdout, stderr, s.spec.Stdout, s.spec.Stderr} {
		c.Close()
	}
	owned.Wait()
	return err
}

func (s *Server) logf(format string, args ...any) {
	fmt.Fprintf(s.log, "nix-sandbox-agent: "+format+"\n", args...)
}

// pong answers a ping, with an error if the interpreter has failed.
func (s *Server) pong(id uint64, failure error) error {
	if failure != nil {
		return s.out.Write(frame.Reply{Type: frame.Error, ID: id, Message: failure.Error()})
	}
	reply := frame.Reply{Type: frame.Pong, ID: id}
	if s.keeper != nil {
		usage, err := s.keeper.Usage()
		if err != nil {
			s.logf("%v", err)
		}
		reply.Size = usage.Memory()
	}
	return s.out.Write(reply)
}

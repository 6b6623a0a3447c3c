// Package server is the agent's side of the frame protocol: it takes requests
// from the runtime, runs code in the sandbox's interpreter one call at a
// time, in order of arrival, and answers each call exactly once.
//
// Two goroutines share the work. One reads requests, and answers at once what
// needs no interpreter: read, ping, an interrupt of a call that waits.
// The other, the executor, is the only one that touches the interpreter.
package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/output"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
)

// Bounds of what waits.
const (
	maxWaiting = 1024     // requests
	maxCode    = 64 << 20 // bytes of code in them
	maxPings   = 64       // newest pings that wait for the interpreter
)

// Config is what a server needs.
type Config struct {
	Spec interpreter.Spec // Null, Stdout and Stderr are the server's own
	// Watch holds the sandbox to its limits; nil where there is none.
	Watch *limitkeeper.Keeper
	In    io.ReadCloser
	Out   io.Writer
	Log   io.Writer
}

// Server serves one sandbox.
type Server struct {
	table *process.Table
	spec  interpreter.Spec
	root  workspace.Root // of the reader; the executor has its own
	out   *frame.Writer
	log   io.Writer
	queue chan task
	stop  context.CancelCauseFunc
	guard *limitkeeper.Keeper
	over  atomic.Pointer[limitkeeper.Crossing] // until the executor has heard of it

	mu    sync.Mutex
	calls map[uint64]*call // those that wait and the one that runs
	code  int              // bytes of code that wait

	pings  []uint64 // that wait for the interpreter
	phase  phase
	broken error // why there is no interpreter
}

// phase is where the interpreter stands, for those who ping.
type phase int

const (
	loading phase = iota
	loaded
	broken
)

// task is what the executor takes: a call or a configuration.
type task struct {
	call      *call
	configure *frame.Request
}

// call is an execute request.
type call struct {
	frame.Request
	running bool
	cancel  chan struct{} // closed by an interrupt
}

// Serve answers requests until their stream ends or ctx is done, and then ends
// the interpreter. It closes cfg.In.
func Serve(ctx context.Context, table *process.Table, cfg Config) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s := &Server{
		table: table,
		spec:  cfg.Spec,
		root:  workspace.Root{Path: cfg.Spec.Root},
		out:   frame.NewWriter(cfg.Out),
		log:   cfg.Log,
		queue: make(chan task, maxWaiting),
		stop:  stop,
		guard: cfg.Watch,
		calls: map[uint64]*call{},
	}
	if err := s.out.Write(frame.Reply{Type: frame.Ready, Protocol: frame.Protocol}); err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	s.spec.Null = null
	stdout, err := s.pipe(&s.spec.Stdout)
	if err != nil {
		return err
	}
	stderr, err := s.pipe(&s.spec.Stderr)
	if err != nil {
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
	if s.guard != nil {
		owned.Go(func() {
			if err := s.guard.Run(ctx, s.crossed); err != nil {
				stop(err)
			}
		})
	}
	err = e.run(ctx)
	stop(nil)
	if cause := context.Cause(ctx); err == nil && cause != context.Canceled {
		err = cause
	}
	cfg.In.Close()
	for _, c := range []io.Closer{stdout, stderr, s.spec.Stdout, s.spec.Stderr} {
		c.Close()
	}
	owned.Wait()
	return err
}

// pipe makes a pipe for one of the interpreter's streams. The agent keeps its
// writing end for the next interpreter.
func (s *Server) pipe(write **os.File) (*output.Stream, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	_ = unix.SetNonblock(p[0], true)
	*write = os.NewFile(uintptr(p[1]), "output")
	return output.New(os.NewFile(uintptr(p[0]), "output"))
}

func (s *Server) logf(format string, args ...any) {
	fmt.Fprintf(s.log, "nix-sandbox-agent: "+format+"\n", args...)
}

// requests reads until the stream ends.
func (s *Server) requests(in io.Reader) error {
	r := frame.NewReader(bufio.NewReader(in))
	for {
		var req frame.Request
		if err := r.Read(&req); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return err
		}
		if err := s.request(req); err != nil {
			return err
		}
	}
}

// request answers or queues one request. Its error is that of the stream.
func (s *Server) request(req frame.Request) error {
	refuse := func(err error) error {
		return s.out.Write(frame.Reply{Type: frame.Error, ID: req.ID, Message: err.Error()})
	}
	switch req.Type {
	case frame.Execute:
		if err := s.enqueue(req); err != nil {
			return refuse(err)
		}
	case frame.Configure:
		select {
		case s.queue <- task{configure: &req}:
		default:
			return refuse(fmt.Errorf("%d requests wait already", maxWaiting))
		}
	case frame.Interrupt:
		return s.interrupt(req.ID)
	case frame.Ping:
		s.mu.Lock()
		now, err := s.phase, s.broken
		if now == loading {
			s.pings = append(s.pings[max(0, len(s.pings)-maxPings+1):], req.ID)
		}
		s.mu.Unlock()
		switch now {
		case loaded:
			return s.out.Write(s.pong(req.ID))
		case broken:
			return refuse(err)
		}
	case frame.Read:
		contents, size, err := s.root.Read(req.Path, req.Offset, req.Length)
		if err != nil {
			return refuse(err)
		}
		return s.out.Write(frame.Reply{Type: frame.Contents, ID: req.ID, Contents: contents, Size: size})
	default:
		return refuse(fmt.Errorf("unknown request %q", req.Type))
	}
	return nil
}

func (s *Server) enqueue(req frame.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.calls[req.ID]; ok {
		return fmt.Errorf("call %d is known already", req.ID)
	}
	if s.code+len(req.Code) > maxCode {
		return fmt.Errorf("%d MiB of code wait already", maxCode>>20)
	}
	c := &call{Request: req, cancel: make(chan struct{})}
	select {
	case s.queue <- task{call: c}:
	default:
		return fmt.Errorf("%d requests wait already", maxWaiting)
	}
	s.calls[req.ID] = c
	s.code += len(req.Code)
	return nil
}

// interrupt cancels a call. One that waits is answered now and never runs;
// one that is not known has been answered.
func (s *Server) interrupt(id uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.calls[id]
	if !ok {
		return nil
	}
	if c.running {
		select {
		case <-c.cancel:
		default:
			close(c.cancel)
		}
		return nil
	}
	delete(s.calls, id)
	s.code -= len(c.Code)
	c.Code = ""
	return s.out.Write(frame.Reply{
		Type: frame.Result, ID: id, Outcome: frame.OutcomeCancelled, ExitCode: 130, State: c.kept(),
	})
}

// kept is the state that a call reports when it did no harm.
func (c *call) kept() string {
	if c.Keep {
		return frame.StateKept
	}
	return ""
}

// take marks a call as running. It is false for one that was cancelled.
func (s *Server) take(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.ID] != c {
		return false
	}
	c.running = true
	s.code -= len(c.Code)
	return true
}

// answer sends a call's last frames and forgets the call.
func (s *Server) answer(c *call, replies []any) error {
	s.mu.Lock()
	delete(s.calls, c.ID)
	s.mu.Unlock()
	return s.out.Write(replies...)
}

// pinged says whether somebody waits for the interpreter to be loaded.
func (s *Server) pinged() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pings) > 0
}

// down says that an interpreter is loading: pings wait.
func (s *Server) down() {
	s.mu.Lock()
	s.phase, s.broken = loading, nil
	s.mu.Unlock()
}

// up answers the pings that wait: the interpreter is loaded, or cannot be.
func (s *Server) up(err error) {
	s.mu.Lock()
	pings := s.pings
	s.pings, s.phase, s.broken = nil, loaded, err
	if err != nil {
		s.phase = broken
	}
	s.mu.Unlock()
	for _, id := range pings {
		reply := frame.Reply{Type: frame.Error, ID: id}
		if err != nil {
			reply.Message = err.Error()
		} else {
			reply = s.pong(id)
		}
		_ = s.out.Write(reply)
	}
}

// pong is the answer to a ping.
func (s *Server) pong(id uint64) frame.Reply {
	reply := frame.Reply{Type: frame.Pong, ID: id}
	if s.guard != nil {
		usage, err := s.guard.Usage()
		if err != nil {
			s.logf("%v", err)
		}
		reply.Size = usage.Memory()
	}
	return reply
}

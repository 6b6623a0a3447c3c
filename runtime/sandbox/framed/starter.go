// Package framed starts sandboxes whose agent speaks frames on the standard
// streams of a program: the bin/session-run of an artifact.
//
// It promises that nothing a sandbox sends or fails to send harms anything
// but that sandbox: every frame is bounded in size and number, every wait in
// time, and a stream that breaks a rule ends its sandbox. What is started is
// killed and waited for, and the kernel kills it if this process dies first.
package framed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/handover"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// defaultStartTimeout is [Options.StartTimeout] where none is given.
const defaultStartTimeout = 10 * time.Second

// Options change how a [Starter] starts; the zero value is fine.
type Options struct {
	// StartTimeout bounds the time from a sandbox's start to its ready reply;
	// 0 is 10 s.
	StartTimeout time.Duration
	// Groups makes a control group for each sandbox; nil where there can be
	// none.
	Groups *cgroup.Tree
}

// Starter starts sandboxes.
type Starter struct {
	log          *slog.Logger
	startTimeout time.Duration
	processes    *process.Starter
	enforcedBy   string
	running      sync.WaitGroup

	mu     sync.Mutex
	closed bool
	live   map[*Sandbox]struct{}
	// workspaces are those whose holders run.
	workspaces map[*workspace]struct{}
}

var (
	_ sandbox.Starter    = (*Starter)(nil)
	_ sandbox.Workspaces = (*Starter)(nil)
)

// New returns a Starter. Its owner calls [Starter.Close].
func New(log *slog.Logger, options Options) *Starter {
	s := &Starter{
		log:          log,
		startTimeout: options.StartTimeout,
		processes:    process.NewStarter(options.Groups),
		enforcedBy:   sandbox.ByAgent,
		live:         map[*Sandbox]struct{}{},
		workspaces:   map[*workspace]struct{}{},
	}
	if s.startTimeout == 0 {
		s.startTimeout = defaultStartTimeout
	}
	if options.Groups != nil {
		s.enforcedBy = sandbox.ByGroup
	}
	return s
}

// Close ends every sandbox; later starts fail with [sandbox.ErrClosed]. It
// waits until nothing of them is left, at most for within.
func (l *Starter) Close(within time.Duration) {
	l.mu.Lock()
	l.closed = true
	for s := range l.live {
		s.Kill()
	}
	for w := range l.workspaces {
		w.Close()
	}
	l.mu.Unlock()
	l.processes.Close()
	sandbox.WaitWithin(&l.running, within)
}

// Start implements [sandbox.Starter].
func (l *Starter) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	began := time.Now()
	s, err := l.spawn(ctx, spec)
	if err != nil {
		return nil, err
	}
	// The agent finds these when it starts to read, so that the interpreter
	// that it loads first is already the right one.
	s.stdin.SetWriteDeadline(began.Add(l.startTimeout * mayTake(spec)))
	messages := []any{frame.Request{
		Type:   frame.Configure,
		Env:    spec.Variables,
		Limits: &frame.Limits{OutputBytes: spec.OutputBytes},
	}}
	if spec.From != "" {
		messages = nil // the agent is configured
	}
	var loaded chan frame.Reply
	if spec.Warm {
		ping := &pending{want: frame.Pong, frames: 1}
		id, err := s.register(ping)
		if err != nil {
			return nil, s.abandon(err)
		}
		messages = append(messages, frame.Request{Type: frame.Ping, ID: id})
		loaded = ping.answer
	}
	if err := s.frames.Write(messages...); err != nil && !errors.Is(err, syscall.EPIPE) {
		s.fail("it cannot be configured: %v", err)
	}
	timer := time.NewTimer(l.startTimeout)
	defer timer.Stop()
	ready := s.ready
	for ready != nil || loaded != nil {
		select {
		case <-ready:
			ready = nil
		case reply := <-loaded:
			if reply.Type == frame.Error {
				s.fail("its interpreter did not load: %s", sandbox.OneLine(reply.Message))
				return nil, s.death()
			}
			s.memory, loaded = reply.Size, nil
		case <-s.done:
			return nil, s.death()
		case <-s.launcher.changes():
			timer.Reset(time.Until(began.Add(l.startTimeout * s.launcher.slowness())))
		case <-timer.C:
			s.fail("it was not ready within %v", l.startTimeout*s.launcher.slowness())
			return nil, s.death()
		case <-ctx.Done():
			return nil, s.abandon(ctx.Err())
		}
	}
	l.log.Debug("sandbox started", "env", spec.Name, "pid", s.pid(), "ms", time.Since(began).Milliseconds())
	return s, nil
}

// upperVariable tells the program of a sandbox the number of the descriptor of a socket,
// over which it sends the upper layer of the project's overlay.
const upperVariable = "NIX_SANDBOX_UPPER"

// mayTake is by how much a start may be longer before its program has reported.
func mayTake(spec sandbox.Spec) time.Duration {
	if spec.Reports {
		return maxStartFactor
	}
	return 1
}

// pass gives a file to a program, which finds the number of its descriptor in a
// variable.
func pass(cmd *exec.Cmd, file *os.File, variable string) {
	cmd.ExtraFiles = append(cmd.ExtraFiles, file)
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", variable, 2+len(cmd.ExtraFiles)))
}

// spawn starts the program and the goroutine that owns it.
func (l *Starter) spawn(ctx context.Context, spec sandbox.Spec) (_ *Sandbox, err error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, sandbox.ErrClosed
	}
	l.running.Add(1)
	l.mu.Unlock()
	defer func() {
		if err != nil {
			l.running.Done()
		}
	}()
	cmd := exec.Command(spec.Exec)
	// Of two variables with one name, the later one counts.
	cmd.Env = append(sandbox.Environ(spec.Secrets), spec.Host.Environ()...)
	if spec.Workspace != nil {
		mount, err := l.join(ctx, cmd, spec)
		if err != nil {
			return nil, err
		}
		defer mount.Close()
	}
	var upper *os.File
	if spec.Upper {
		var theirs *os.File
		if upper, theirs, err = socketpair("upper layer"); err != nil {
			return nil, err
		}
		pass(cmd, theirs, upperVariable)
		defer theirs.Close()
		defer func() {
			if err != nil {
				upper.Close()
			}
		}()
	}
	pipes := make([]struct{ r, w *os.File }, 3, 4)
	if spec.Network {
		pipes = pipes[:4]
	}
	closeAll := func() {
		for _, pipe := range pipes {
			pipe.r.Close() // on nil too, which is an error and nothing else
			pipe.w.Close()
		}
	}
	for i := range pipes {
		if pipes[i].r, pipes[i].w, err = os.Pipe(); err != nil {
			closeAll()
			return nil, &sandbox.DeadError{Reason: err.Error()}
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipes[0].r, pipes[1].w, pipes[2].w
	if spec.Network {
		pass(cmd, pipes[3].w, handover.EventsVariable)
	}
	var reports, theirReports *os.File
	if spec.Reports {
		if reports, theirReports, err = os.Pipe(); err != nil {
			closeAll()
			return nil, &sandbox.DeadError{Reason: err.Error()}
		}
		defer theirReports.Close()
		pass(cmd, theirReports, ReportsVariable)
	}
	var ours *control
	if spec.Control {
		var theirs *os.File
		if ours, theirs, err = openControl(); err != nil {
			closeAll()
			reports.Close()
			return nil, err
		}
		defer theirs.Close()
		pass(cmd, theirs, controlVariable)
	}
	if spec.From != "" {
		cmd.Env = append(cmd.Env, fromVariable+"="+spec.From)
	}
	limits := cgroup.Limits(spec.Limits).With(cgroup.Limits(spec.Overhead))
	if spec.Network {
		limits = limits.WithNetwork()
	}
	started, err := l.processes.Start(cmd, limits)
	if err != nil {
		closeAll()
		reports.Close() // on nil too, which is an error and nothing else
		ours.close()
		if errors.Is(err, process.ErrClosed) {
			return nil, sandbox.ErrClosed
		}
		return nil, &sandbox.DeadError{Reason: err.Error()}
	}
	pipes[0].r.Close()
	for _, pipe := range pipes[1:] {
		pipe.w.Close()
	}
	s := newSandbox(l.log.With("env", spec.Name), started, pipes[0].w, pipes[1].r, pipes[2].r, spec.OutputBytes)
	s.enforcedBy, s.upper, s.control = l.enforcedBy, upper, ours
	if spec.Reports {
		s.launcher = newLauncher(reports)
	}
	if spec.Network {
		s.network = &network{log: s.log.With("sandbox", s.pid()), events: pipes[3].r}
	}
	l.mu.Lock()
	l.live[s] = struct{}{}
	closed := l.closed
	l.mu.Unlock()
	if closed { // meanwhile
		s.Kill()
	}
	go func() {
		defer l.running.Done()
		s.run()
		if err := started.Close(); err != nil {
			l.log.Error("a control group is left behind", "error", err)
		}
		l.mu.Lock()
		delete(l.live, s)
		l.mu.Unlock()
		s.end()
	}()
	return s, nil
}

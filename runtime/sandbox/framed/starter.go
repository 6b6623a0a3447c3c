// Package framed starts sandboxes with an agent that speaks frames on the standard streams of a
// program: the bin/session-run of an artifact.
//
// It promises that a sandbox can harm only itself by sending anything, or nothing: every frame is
// bounded in size and number, every wait in time, and a stream that breaks a rule ends its sandbox.
// Every started process is killed and waited for, and the kernel kills it if this process dies
// first.
package framed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// defaultStartTimeout is used if [Options.StartTimeout] is 0.
const defaultStartTimeout = 10 * time.Second

// Options change how a [Starter] starts; the zero value is fine.
type Options struct {
	// StartTimeout bounds the time from a sandbox's start to its ready reply;
	// 0 is 10 s.
	StartTimeout time.Duration
	// Groups makes a control group for each sandbox; nil means without control groups.
	Groups *cgroup.Tree
	// Together returns the limits of all sandboxes of a principal together, which only control
	// groups enforce; nil means no limits.
	Together func(principal string) sandbox.Limits
}

// Starter starts sandboxes.
type Starter struct {
	log          *slog.Logger
	startTimeout time.Duration
	processes    *process.Starter
	together     func(principal string) sandbox.Limits
	enforcedBy   string
	running      sync.WaitGroup

	mu     sync.Mutex
	closed bool
	live   map[*Sandbox]struct{}
	// workspaces are the workspaces with a running holder.
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
		together:     options.Together,
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

// owner is a principal as control groups know one.
func (l *Starter) owner(principal string) cgroup.Owner {
	owner := cgroup.Owner{Name: principal}
	if l.together != nil {
		owner.Limits = cgroup.Limits(l.together(principal))
	}
	return owner
}

// Close ends every sandbox; later starts fail with [sandbox.ErrClosed]. It waits until all
// processes of the sandboxes are gone, at most for within.
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
	within := s.within(l.startTimeout)
	s.stdin.SetWriteDeadline(began.Add(within))
	messages := []any{frame.Request{
		Type:        frame.Configure,
		Env:         spec.Variables,
		OutputBytes: spec.OutputBytes,
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
	switch err := s.frames.Write(messages...); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.fail("it was not ready within %v", within)
	case err != nil && !errors.Is(err, syscall.EPIPE):
		s.fail("it cannot be configured: %v", err)
	}
	timer := time.NewTimer(time.Until(began.Add(within)))
	defer timer.Stop()
	ready := s.ready
	for ready != nil || loaded != nil {
		select {
		case <-ready:
			ready = nil
		case reply := <-loaded:
			if reply.Type == frame.Error {
				s.fail("its interpreter did not load: %s", hostile.Message(reply.Message))
				return nil, s.death()
			}
			s.memory, loaded = reply.Size, nil
		case <-s.done:
			return nil, s.death()
		case <-timer.C:
			s.fail("it was not ready within %v", within)
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

// startError returns the error of a program that did not start.
func startError(err error) error {
	if errors.Is(err, process.ErrClosed) {
		return sandbox.ErrClosed
	}
	return &sandbox.DeadError{Reason: err.Error()}
}

// pass gives a file to a program, which finds the number of its descriptor in a
// variable.
func pass(cmd *exec.Cmd, file *os.File, variable string) {
	cmd.ExtraFiles = append(cmd.ExtraFiles, file)
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", variable, 2+len(cmd.ExtraFiles)))
}

// pairs are connected files. This process has one end of each, and a program that is about to start
// the other.
type pairs struct {
	ours, theirs []*os.File
	err          error // of the first that could not be made
}

// add takes both ends, or the error of making them, and returns the ends.
func (p *pairs) add(ours, theirs *os.File, err error) (_, _ *os.File) {
	p.ours, p.theirs, p.err = append(p.ours, ours), append(p.theirs, theirs), cmp.Or(p.err, err)
	return ours, theirs
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close() // on nil too, which only returns an error
	}
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
	if wrong := config.TooFewFiles(); wrong != nil {
		l.running.Done()
		return nil, wrong
	}
	var ends pairs
	defer func() {
		closeAll(ends.theirs)
		if err != nil {
			closeAll(ends.ours)
			l.running.Done()
		}
	}()
	cmd := exec.Command(spec.Exec)
	// Of two variables with one name, the later one counts.
	cmd.Env = append(sandbox.Environ(spec.Secrets), spec.Host.Environ()...)
	if spec.Workspace != nil {
		mounts, err := l.join(ctx, cmd, spec)
		if err != nil {
			return nil, err
		}
		defer closeAll(mounts)
	}
	theirStdin, ourStdin, err := os.Pipe()
	stdin, _ := ends.add(ourStdin, theirStdin, err)
	stdout, theirStdout := ends.add(os.Pipe())
	stderr, theirStderr := ends.add(os.Pipe())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirStdin, theirStdout, theirStderr
	var upper, events, reports, controlled, theirs *os.File
	if spec.Upper {
		upper, theirs = ends.add(socketpair(unix.SOCK_SEQPACKET, "upper layer"))
		pass(cmd, theirs, upperVariable)
	}
	if spec.Network {
		if spec.Asks {
			// The answers come back on it.
			events, theirs = ends.add(socketpair(unix.SOCK_SEQPACKET, "network events"))
		} else {
			events, theirs = ends.add(os.Pipe())
		}
		pass(cmd, theirs, handover.EventsVariable)
	}
	if spec.Reports {
		reports, theirs = ends.add(os.Pipe())
		pass(cmd, theirs, ReportsVariable)
	}
	if spec.Control {
		controlled, theirs = ends.add(socketpair(unix.SOCK_STREAM, "control"))
		pass(cmd, theirs, controlVariable)
	}
	if ends.err != nil {
		return nil, &sandbox.DeadError{Reason: ends.err.Error()}
	}
	if spec.From != "" {
		cmd.Env = append(cmd.Env, fromVariable+"="+spec.From)
	}
	limits := cgroup.Limits(spec.Limits).With(cgroup.Limits(spec.Overhead))
	if spec.Network {
		limits = limits.WithNetwork()
	}
	started, err := l.processes.Start(cmd, limits, l.owner(spec.Principal))
	if err != nil {
		return nil, startError(err)
	}
	s := newSandbox(l.log.With("env", spec.Name), started, stdin, stdout, stderr, spec.OutputBytes)
	s.enforcedBy, s.owner, s.upper, s.grown = l.enforcedBy, l.owner, upper, []string{spec.Exec}
	if spec.Control {
		s.control = &control{socket: controlled}
	}
	if spec.Reports {
		s.launcher = newLauncher(reports)
	}
	if spec.Network {
		s.network = &network{log: s.log.With("sandbox", s.pid()), events: events}
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

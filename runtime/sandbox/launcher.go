// Package sandbox starts sandboxes and speaks frames with the agent in each.
//
// It promises that nothing a sandbox sends or fails to send harms anything
// but that sandbox: every frame is bounded in size and number, every wait in
// time, and a stream that breaks a rule ends its sandbox. What is started is
// killed and waited for, and the kernel kills it if this program dies first.
package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
)

// readyWithin is what a sandbox may take from its start to its ready reply,
// unless [Launcher.Wait] says otherwise.
const readyWithin = 10 * time.Second

// Spec is a sandbox to start.
type Spec struct {
	// Name is the environment's, for the log.
	Name string
	// Exec is the artifact's bin/session-run.
	Exec string
	// OutputBytes is what a call may answer of each stream.
	OutputBytes int64
	// Limits are what a control group holds the sandbox to; its agent holds
	// it to those that Nix wrote into the artifact.
	Limits cgroup.Limits
	// Env holds the inherited variables; they travel in a frame and so never
	// appear on a command line or in a process's environment on the host.
	Env map[string]string
	// Warm says that the sandbox is not wanted before its interpreter has
	// loaded.
	Warm bool
}

// ErrClosed reports a start after [Launcher.Close].
var ErrClosed = errors.New("the server is ending")

// Launcher starts sandboxes. All are started by one thread that lives as
// long as the launcher: Linux sends the signal that ends a sandbox with its
// parent when the parent *thread* ends.
type Launcher struct {
	log     *slog.Logger
	ready   time.Duration // what a start may take
	environ []string
	groups  *cgroup.Tree // nil where there are none
	starts  chan func()
	closed  chan struct{}
	close   sync.Once
	thread  sync.WaitGroup
	running sync.WaitGroup

	mu   sync.Mutex
	live map[*Sandbox]struct{}
}

// NewLauncher returns a launcher whose sandboxes get environ, and nothing
// else, as their environment. Each is started in a group of its own of
// groups; nil where there can be none.
func NewLauncher(log *slog.Logger, environ []string, groups *cgroup.Tree) *Launcher {
	l := &Launcher{
		log:   log,
		ready: readyWithin,
		// Not nil, which would mean the server's own environment.
		environ: append([]string{}, environ...),
		groups:  groups,
		starts:  make(chan func()),
		closed:  make(chan struct{}),
		live:    map[*Sandbox]struct{}{},
	}
	l.thread.Go(l.serve)
	return l
}

// Wait sets what a sandbox may take from its start to its ready reply, for
// machines on which it takes longer. It must be called before the first start.
func (l *Launcher) Wait(within time.Duration) { l.ready = within }

// serve owns the thread. It never unlocks it: the thread ends with the
// goroutine.
func (l *Launcher) serve() {
	runtime.LockOSThread()
	for {
		select {
		case start := <-l.starts:
			start()
		case <-l.closed:
			return
		}
	}
}

// Close ends the launcher and every sandbox. It waits until nothing of them
// is left, at most for within.
func (l *Launcher) Close(within time.Duration) {
	l.close.Do(func() { close(l.closed) })
	l.thread.Wait()
	l.mu.Lock()
	for s := range l.live {
		s.Kill()
	}
	l.mu.Unlock()
	done := make(chan struct{})
	go func() {
		l.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(within):
	}
}

// removeWithin is what the processes of a group that was killed may take to
// be gone.
const removeWithin = 2 * time.Second

// remove ends a control group.
func (l *Launcher) remove(group *cgroup.Group) {
	ctx, stop := context.WithTimeout(context.Background(), removeWithin)
	defer stop()
	if err := group.Close(ctx); err != nil {
		l.log.Error("a control group is left behind", "error", err)
	}
}

// What holds sandboxes to their limits of memory and processes.
const (
	ByGroup = "cgroup" // a control group, and before it the agent's watch
	ByWatch = "watch"  // the agent's watch alone
)

// Enforcer says which of the two it is.
func (l *Launcher) Enforcer() string {
	if l.groups == nil {
		return ByWatch
	}
	return ByGroup
}

// own runs a started sandbox to its end.
func (l *Launcher) own(s *Sandbox) {
	l.mu.Lock()
	l.live[s] = struct{}{}
	l.mu.Unlock()
	l.running.Go(func() {
		s.own()
		l.remove(s.group)
		l.mu.Lock()
		delete(l.live, s)
		l.mu.Unlock()
		s.finish()
	})
}

// Start starts a sandbox and waits until its agent is ready; of one that did
// not start nothing is left when it returns.
func (l *Launcher) Start(ctx context.Context, spec Spec) (*Sandbox, error) {
	began := time.Now()
	s, err := l.spawn(spec)
	if err != nil {
		return nil, err
	}
	// In the pipe before the agent reads it: the interpreter that it starts at
	// once is then the right one.
	s.stdin.SetWriteDeadline(began.Add(l.ready))
	messages := []any{frame.Request{
		Type:   frame.Configure,
		Env:    spec.Env,
		Limits: &frame.Limits{OutputBytes: spec.OutputBytes},
	}}
	var loaded chan frame.Reply
	if spec.Warm {
		ping := &request{want: frame.Pong, frames: 1}
		id, err := s.expect(ping)
		if err != nil {
			return nil, s.abandon(err)
		}
		messages = append(messages, frame.Request{Type: frame.Ping, ID: id})
		loaded = ping.answer
	}
	if err := s.frames.Write(messages...); err != nil && !errors.Is(err, syscall.EPIPE) {
		s.fail("it cannot be configured: %v", err)
	}
	timer := time.NewTimer(l.ready)
	defer timer.Stop()
	ready := s.ready
	for ready != nil || loaded != nil {
		select {
		case <-ready:
			ready = nil
		case reply := <-loaded:
			if reply.Type == frame.Error {
				s.fail("its interpreter did not load: %s", clean(reply.Message))
				return nil, s.gone()
			}
			s.memory, loaded = reply.Size, nil
		case <-s.dead:
			return nil, s.gone()
		case <-timer.C:
			s.fail("it was not ready within %v", l.ready)
			return nil, s.gone()
		case <-ctx.Done():
			return nil, s.abandon(ctx.Err())
		}
	}
	l.log.Debug("sandbox started", "env", spec.Name, "pid", s.cmd.Process.Pid, "ms", time.Since(began).Milliseconds())
	return s, nil
}

// spawn starts the process and the goroutines that own it.
func (l *Launcher) spawn(spec Spec) (*Sandbox, error) {
	group, err := l.groups.New(spec.Limits)
	if err != nil {
		return nil, &DeadError{Reason: err.Error()}
	}
	var pipes [3]struct{ r, w *os.File }
	for i := range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			for _, pipe := range pipes[:i] {
				pipe.r.Close()
				pipe.w.Close()
			}
			l.remove(group)
			return nil, &DeadError{Reason: err.Error()}
		}
		pipes[i].r, pipes[i].w = r, w
	}
	cmd := exec.Command(spec.Exec)
	cmd.Env = l.environ
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipes[0].r, pipes[1].w, pipes[2].w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	group.Apply(cmd.SysProcAttr)

	s := newSandbox(l.log.With("env", spec.Name), cmd, pipes[0].w, pipes[1].r, pipes[2].r, spec.OutputBytes)
	s.group, s.enforcer = group, l.Enforcer()
	result := make(chan error, 1)
	start := func() {
		err := cmd.Start()
		if err == nil {
			l.own(s)
		}
		result <- err
	}
	err = ErrClosed
	select {
	case l.starts <- start:
		err = <-result
	case <-l.closed:
	}
	pipes[0].r.Close()
	pipes[1].w.Close()
	pipes[2].w.Close()
	if err != nil {
		pipes[0].w.Close()
		pipes[1].r.Close()
		pipes[2].r.Close()
		l.remove(group)
		if !errors.Is(err, ErrClosed) {
			err = &DeadError{Reason: err.Error()}
		}
		return nil, err
	}
	return s, nil
}

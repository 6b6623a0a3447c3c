// Package process starts the programs of artifacts, for package framed and package interactive.
//
// It promises that a program is in a process group and, if control groups are available, in a
// control group of its own from its first instruction on; that the kernel kills it if this process
// dies; and that [Process.Close] leaves no process of either group.
package process

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// closeTimeout bounds how long [Process.Close] waits for processes that it
// killed.
const closeTimeout = 2 * time.Second

// ErrClosed reports a start after [Starter.Close].
var ErrClosed = errors.New("no program is started any more")

// Starter starts programs, all on one thread that lives as long as the
// Starter: Linux sends the signal that ends a program with its parent when
// the parent *thread* ends (PR_SET_PDEATHSIG in prctl(2)).
type Starter struct {
	groups *cgroup.Tree
	starts chan func()
	closed chan struct{}
	close  sync.Once
	thread sync.WaitGroup
}

// NewStarter returns a Starter that makes a control group for each program in groups; nil means
// without control groups.
func NewStarter(groups *cgroup.Tree) *Starter {
	s := &Starter{groups: groups, starts: make(chan func()), closed: make(chan struct{})}
	s.thread.Go(s.serve)
	return s
}

// serve owns the thread. It never unlocks it, so that the thread ends with
// the goroutine and no other goroutine runs on it.
func (s *Starter) serve() {
	runtime.LockOSThread()
	for {
		select {
		case start := <-s.starts:
			start()
		case <-s.closed:
			return
		}
	}
}

// Close ends the thread. Callers end their programs first: the end of the thread kills running
// programs, but Go does not end a process's main thread, which this one may be.
func (s *Starter) Close() {
	s.close.Do(func() { close(s.closed) })
	s.thread.Wait()
}

// Start starts cmd for an owner, with exactly the variables of cmd.Env, in / of the host. The
// caller calls [Process.Wait] and then [Process.Close]. The error names the program, which is not
// running after an error.
func (s *Starter) Start(cmd *exec.Cmd, limits cgroup.Limits, owner cgroup.Owner) (*Process, error) {
	group, err := s.groups.New(limits, owner)
	if err != nil {
		return nil, err
	}
	if cmd.Env == nil { // which would mean this process's own
		cmd.Env = []string{}
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	host.EndWithParent(cmd.SysProcAttr)
	group.Apply(cmd.SysProcAttr)
	p := &Process{Cmd: cmd, group: group}
	started := make(chan error, 1)
	err = ErrClosed
	select {
	case s.starts <- func() { started <- cmd.Start() }:
		err = <-started
	case <-s.closed:
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Process is a program that was started.
type Process struct {
	Cmd   *exec.Cmd
	group *cgroup.Group

	mu     sync.Mutex
	reaped bool // the process id may be another process's
}

// Kill kills the process group. It has no effect after [Process.Wait].
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = unix.Kill(-p.Cmd.Process.Pid, unix.SIGKILL)
	}
}

// Wait waits for the program's end, kills the rest of its process group, and returns the result of
// cmd.Wait.
func (p *Process) Wait() error {
	// A process that has ended keeps its id until it is reaped. Until then no
	// other process group can have this id, so the signal cannot reach another.
	_ = host.WaitEnd(p.Cmd.Process.Pid) // cmd.Wait returns the same error
	p.Kill()
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
	return p.Cmd.Wait()
}

// Give gives the program's control group to an owner, as [cgroup.Group.Give] does.
func (p *Process) Give(owner cgroup.Owner) error { return p.group.Give(owner) }

// Killed returns the kernel's kills in the program's control group because memory was short.
func (p *Process) Killed() (cgroup.Killed, error) { return p.group.Killed() }

// Close ends the remaining processes of the program's control group, and removes the group.
func (p *Process) Close() error {
	ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
	defer stop()
	return p.group.Close(ctx)
}

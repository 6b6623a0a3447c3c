// Package process starts the processes of a sandbox and waits for them.
//
// The agent is the init of its pid namespace: orphaned processes become its children. A
// wait for one process and a wait for all would race for statuses, so one loop waits for
// all children, keeps the status of each [Process] and drops the others. No other package
// of the agent may wait for a child: os/exec must not be used beside a [Table].
package process

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Table has the running processes that were started with it, and reaps every child of this
// process.
type Table struct {
	starts  sync.Mutex // held by KillAll, so that no process starts meanwhile
	mu      sync.Mutex
	live    map[int]*Process
	signals chan os.Signal
	spawns  chan func() // run by the thread that starts processes
	err     error       // why that thread cannot start processes
	joins   func(pid int) error
}

// OnStart sets a function to call with the process id of each process once it has started.
// It is called before the first start.
func (t *Table) OnStart(f func(pid int) error) { t.joins = f }

// NewTable returns a Table, which reaps as long as this process lives. A process may have
// one Table only.
func NewTable() *Table {
	t := &Table{
		live:    make(map[int]*Process),
		signals: make(chan os.Signal, 1),
		spawns:  make(chan func()),
	}
	signal.Notify(t.signals, unix.SIGCHLD)
	go t.loop()
	go t.spawn()
	return t
}

// spawn owns the thread that starts processes. They inherit its system call filter, which
// the agent's other threads do not have. The thread stays locked and ends with the
// goroutine.
func (t *Table) spawn() {
	runtime.LockOSThread()
	t.err = confine()
	for start := range t.spawns {
		start()
	}
}

func (t *Table) loop() {
	for range t.signals {
		t.reap()
	}
}

// reap waits for every child that has ended, because one SIGCHLD may stand for many. The
// lock makes sure that no signal goes to a process id that has been reused.
func (t *Table) reap() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if p, ok := t.live[pid]; ok {
			delete(t.live, pid)
			p.status = status
			close(p.done)
		}
	}
}

// Command is a program to start.
type Command struct {
	Path string
	Args []string // the program's arguments, its own name first
	Env  []string
	Dir  string
	// Files become the descriptors 0, 1, 2, …; nil leaves a descriptor closed.
	Files []*os.File
	// Terminal makes descriptor 0 the controlling terminal.
	Terminal bool
	// Beside says that other programs go on when the process is killed: Kill ends its group alone.
	Beside bool
}

// Process is a process that was started. It leads a session and a process group of its
// own, so that a signal reaches its descendants unless they have left the group.
type Process struct {
	Pid    int
	beside bool
	table  *Table
	done   chan struct{}
	status unix.WaitStatus
}

// Start starts a process.
func (t *Table) Start(c Command) (*Process, error) {
	files := make([]uintptr, len(c.Files))
	for i, f := range c.Files {
		files[i] = ^uintptr(0)
		if f != nil {
			files[i] = f.Fd()
		}
	}
	t.starts.Lock()
	defer t.starts.Unlock()
	// With the lock, a process that ends at once is in the table before it is reaped.
	t.mu.Lock()
	defer t.mu.Unlock()
	var pid int
	var err error
	done := make(chan struct{})
	t.spawns <- func() {
		defer close(done)
		if err = t.err; err == nil {
			pid, err = syscall.ForkExec(c.Path, c.Args, &syscall.ProcAttr{
				Dir:   c.Dir,
				Env:   c.Env,
				Files: files,
				Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: c.Terminal, Unshareflags: forceFork},
			})
		}
	}
	<-done
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	p := &Process{Pid: pid, beside: c.Beside, table: t, done: make(chan struct{})}
	t.live[pid] = p
	if t.joins != nil {
		if err := t.joins(pid); err != nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			return nil, fmt.Errorf("start %s: %w", c.Path, err)
		}
	}
	return p, nil
}

// Done is closed when the process has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode is the exit status of a process that has ended, 128 + N if signal N ended it.
func (p *Process) ExitCode() int {
	if p.status.Signaled() {
		return 128 + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

// Signalled reports whether a signal ended a process that has ended.
func (p *Process) Signalled() bool { return p.status.Signaled() }

// Signal sends a signal to the process's group while the process lives.
func (p *Process) Signal(sig unix.Signal) { p.signal(-p.Pid, sig) }

// SignalAlone sends a signal to the process, and not to its group.
func (p *Process) SignalAlone(sig unix.Signal) { p.signal(p.Pid, sig) }

func (p *Process) signal(to int, sig unix.Signal) {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if _, ok := p.table.live[p.Pid]; ok {
		_ = unix.Kill(to, sig)
	}
}

// Kill sends SIGKILL to the process and to everything that may belong to it. If this
// process is the init of its namespace, that is every other process, because some may have
// left the group by setsid. Otherwise, and for a process beside others, it is the group.
func (p *Process) Kill() {
	p.Signal(unix.SIGKILL)
	if !p.beside {
		p.table.KillAll()
	}
}

// endTimeout is how long a process may take to be gone after SIGKILL.
const endTimeout = 10 * time.Second

// ErrUnkillable reports a process that has not ended 10 s after SIGKILL.
var ErrUnkillable = errors.New("the process does not end after SIGKILL")

// End kills the process, as Kill does, and waits until it has ended.
func (p *Process) End() error {
	p.Kill()
	select {
	case <-p.done:
		return nil
	case <-time.After(endTimeout):
		return ErrUnkillable
	}
}

// killTime bounds how long KillAll waits. A process that is stuck in the kernel
// may take longer to end.
const killTime = 2 * time.Second

// KillAll sends SIGKILL to every process of the namespace but this one and waits
// until they have ended, for at most 2 s. It does nothing unless this process is
// the namespace's init. A Start that is called meanwhile waits for it.
func (t *Table) KillAll() {
	if os.Getpid() != 1 {
		return
	}
	deadline := time.Now().Add(killTime)
	// A Start may have forked already. Code, which has the same user, can stop that
	// process before it begins its program, and Start would not return.
	for !t.starts.TryLock() {
		_ = unix.Kill(-1, unix.SIGKILL)
		if time.Now().After(deadline) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	defer t.starts.Unlock()
	// A process may fork while the others are killed.
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		if unix.Kill(-1, unix.SIGKILL) == unix.ESRCH || time.Now().After(deadline) {
			return
		}
		time.Sleep(pause)
		t.reap()
	}
}

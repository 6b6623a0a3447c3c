// Package interactive gives one program of a sandbox to the person who asked for
// it: what the program writes arrives as it comes and as it is.
//
// It promises that none of the caller's descriptors are in the sandbox, which
// talks through pipes alone; that the sandbox is held to the limits of its
// environment; and that nothing of it is left when [Program.Wait] returns, or
// when this process dies.
package interactive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
)

// MaxCode is the longest code, in bytes: a frame holds it as base64.
const MaxCode = 11 << 20

// removeWithin is what the processes of a control group that was killed may
// take to be gone.
const removeWithin = 2 * time.Second

// Spec is a program to start.
type Spec struct {
	// Exec is the artifact's bin/attach.
	Exec string
	// Environ is the environment of Exec, nothing else.
	Environ []string
	// First says what to run: an Execute or an Open.
	First frame.Request
	// Groups makes the sandbox's control group; nil where there can be none.
	Groups *cgroup.Tree
	Limits cgroup.Limits

	Stdout, Stderr io.Writer
}

// Program is one that runs. Its methods may be called at the same time.
type Program struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	frames *frame.Writer
	group  *cgroup.Group
	ended  chan struct{}
	err    error // of the end
}

// Start starts a program.
func Start(spec Spec) (*Program, error) {
	group, err := spec.Groups.New(spec.Limits)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(spec.Exec)
	cmd.Env = append([]string{}, spec.Environ...) // not nil, which is ours
	cmd.Dir = "/"
	// Hidden in a type of ours, so that no file becomes the sandbox's own.
	cmd.Stdout, cmd.Stderr = through{spec.Stdout}, through{spec.Stderr}
	// A group of its own: what the terminal's keys send is for us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	group.Apply(cmd.SysProcAttr)
	p := &Program{cmd: cmd, group: group, ended: make(chan struct{})}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, errors.Join(fmt.Errorf("make a pipe: %w", err), p.remove())
	}
	p.frames = frame.NewWriter(p.stdin)
	started := make(chan error, 1)
	go p.own(started)
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", spec.Exec, err), p.remove())
	}
	if err := p.frames.Write(spec.First); err != nil && !errors.Is(err, syscall.EPIPE) {
		p.Kill()
		_, _ = p.Wait()
		return nil, err
	}
	return p, nil
}

type through struct{ io.Writer }

// own starts the program and waits for its end, on one thread: Linux sends
// the signal that ends a sandbox with its parent when the parent thread ends.
func (p *Program) own(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	// What has ended keeps its id until it is waited for, so that its group is
	// no other one's. In it is what bubblewrap left when it was killed before
	// it had made the sandbox.
	err = unix.EINTR
	for err == unix.EINTR {
		err = unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}
	if err == nil {
		_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL)
	}
	p.err = p.cmd.Wait()
	if err := p.remove(); err != nil {
		p.err = errors.Join(p.err, err)
	}
	close(p.ended)
}

// remove ends the control group.
func (p *Program) remove() error {
	ctx, stop := context.WithTimeout(context.Background(), removeWithin)
	defer stop()
	return p.group.Close(ctx)
}

// Type gives the program what was typed, or piped.
func (p *Program) Type(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	return p.frames.Write(frame.Request{Type: frame.Input, Contents: data})
}

// CloseInput ends what is typed.
func (p *Program) CloseInput() error { return p.frames.Write(frame.Request{Type: frame.Input}) }

// Resize tells the program the terminal's new size.
func (p *Program) Resize(t frame.Terminal) error {
	return p.frames.Write(frame.Request{Type: frame.Resize, Terminal: &t})
}

// Interrupt sends SIGINT to the code, which is killed where it does not end
// within seconds. It does not wait for a program that does not read its input.
func (p *Program) Interrupt() {
	go func() { _ = p.frames.Write(frame.Request{Type: frame.Interrupt}) }()
}

// Kill ends the sandbox.
func (p *Program) Kill() { _ = p.cmd.Process.Kill() }

// Ended is closed when nothing is left of the program.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end of the program and returns its exit status: 128 + N
// where signal N ended it. A writer that failed is an error where the program
// ended well and cannot know; a reader that went away is none.
func (p *Program) Wait() (int, error) {
	<-p.ended
	state := p.cmd.ProcessState
	if state == nil {
		return 0, p.err
	}
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	var unwritten *fs.PathError
	if state.Success() && errors.As(p.err, &unwritten) && !errors.Is(unwritten, syscall.EPIPE) {
		return 0, fmt.Errorf("not all that the code printed could be written: %w", unwritten)
	}
	return state.ExitCode(), nil
}

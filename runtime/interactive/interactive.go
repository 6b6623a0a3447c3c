// Package interactive runs one program in a sandbox for the user of the command
// line: what the program writes arrives at once and unchanged.
//
// It promises that the sandbox has none of the caller's descriptors, only pipes;
// that the limits of its environment are enforced; and that nothing of it is
// left when [Program.Wait] returns, or when this process dies.
package interactive

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"syscall"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/process"
)

// MaxCode is the longest code, in bytes: in a frame it is base64.
const MaxCode = 11 << 20

// Spec is a program to start.
type Spec struct {
	// Exec is the artifact's bin/attach.
	Exec string
	// Environ has all the variables of Exec.
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
	starter *process.Starter
	process *process.Process
	frames  *frame.Writer
	ended   chan struct{}
	err     error // of the end
}

// Start starts a program.
func Start(spec Spec) (*Program, error) {
	cmd := exec.Command(spec.Exec)
	cmd.Env = spec.Environ
	// Package os/exec would pass an *os.File to the program as it is; of any
	// other writer it makes a pipe.
	cmd.Stdout, cmd.Stderr = writerOnly{spec.Stdout}, writerOnly{spec.Stderr}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	p := &Program{starter: process.NewStarter(spec.Groups), frames: frame.NewWriter(stdin), ended: make(chan struct{})}
	if p.process, err = p.starter.Start(cmd, spec.Limits); err != nil {
		p.starter.Close()
		return nil, fmt.Errorf("start %s: %w", spec.Exec, err)
	}
	go p.run()
	if err := p.frames.Write(spec.First); err != nil && !errors.Is(err, syscall.EPIPE) {
		p.Kill()
		_, _ = p.Wait()
		return nil, err
	}
	return p, nil
}

type writerOnly struct{ io.Writer }

// run waits for the program's end.
func (p *Program) run() {
	p.err = p.process.Wait()
	if err := p.process.Close(); err != nil {
		p.err = errors.Join(p.err, err)
	}
	p.starter.Close()
	close(p.ended)
}

// Type sends input to the program.
func (p *Program) Type(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	return p.frames.Write(frame.Request{Type: frame.Input, Contents: data})
}

// CloseInput ends the program's input.
func (p *Program) CloseInput() error { return p.frames.Write(frame.Request{Type: frame.Input}) }

// Resize tells the program the terminal's new size.
func (p *Program) Resize(t frame.Terminal) error {
	return p.frames.Write(frame.Request{Type: frame.Resize, Terminal: &t})
}

// Interrupt sends SIGINT to the code; the agent kills it if it does not end
// within seconds. Interrupt does not block on a program that does not read.
func (p *Program) Interrupt() {
	go func() { _ = p.frames.Write(frame.Request{Type: frame.Interrupt}) }()
}

// Kill ends the sandbox.
func (p *Program) Kill() { p.process.Kill() }

// Ended is closed when nothing is left of the program.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end of the program and returns its exit status: 128 + N
// if signal N ended it. If the program succeeded but its output could not be
// written, that is an error, unless the reader of the output went away.
func (p *Program) Wait() (int, error) {
	<-p.ended
	state := p.process.Cmd.ProcessState
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

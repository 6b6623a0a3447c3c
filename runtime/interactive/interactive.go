// Package interactive runs one program in a sandbox for a user of the command line. Output of the
// program arrives at once and unchanged.
//
// The sandbox has pipes, and no descriptor of the caller. The limits of its environment are
// enforced. When [Program.Wait] returns, or this process dies, the sandbox is gone.
package interactive

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// MaxCode is the longest code, in bytes: in a frame it is base64.
const MaxCode = 11 << 20

// Spec is a program to start.
type Spec struct {
	// Exec is the artifact's bin/attach.
	Exec string
	// Environ has all the variables of Exec.
	Environ []string
	// First is the request to run the program: an Execute or an Open.
	First frame.Request
	// Groups makes the sandbox's control group; nil if none can be made.
	Groups *cgroup.Tree
	Limits cgroup.Limits
	// Reports says that Exec reports when it begins to run the program.
	Reports bool

	Stdout, Stderr io.Writer
}

// Program is a running program. Its methods may be called at the same time.
type Program struct {
	starter *process.Starter
	process *process.Process
	frames  *frame.Writer
	begun   chan struct{}
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
	p := &Program{starter: process.NewStarter(spec.Groups), frames: frame.NewWriter(stdin), begun: make(chan struct{}), ended: make(chan struct{})}
	reports, theirs, err := p.openReports(cmd, spec.Reports)
	if err != nil {
		p.starter.Close()
		return nil, err
	}
	p.process, err = p.starter.Start(cmd, spec.Limits, cgroup.Owner{})
	theirs.Close() // an error if it is nil
	if err != nil {
		reports.Close()
		p.starter.Close()
		return nil, fmt.Errorf("start %s: %w", spec.Exec, err)
	}
	go p.follow(reports)
	go p.run()
	// A program that has ended does not read: its status says more.
	if err := p.frames.Write(spec.First); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, fs.ErrClosed) {
		p.Kill()
		_, _ = p.Wait()
		return nil, err
	}
	return p, nil
}

type writerOnly struct{ io.Writer }

// reportsVariable names the descriptor on which Exec reports (docs/contracts.md, C1).
const reportsVariable = "NIX_SANDBOX_REPORTS"

// maxReports bounds the reports that are read, in bytes.
const maxReports = 64 << 10

// openReports makes a pipe for reports if they are wanted. Otherwise both ends are nil.
func (p *Program) openReports(cmd *exec.Cmd, wanted bool) (reports, theirs *os.File, err error) {
	if !wanted {
		return nil, nil, nil
	}
	if reports, theirs, err = os.Pipe(); err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	cmd.ExtraFiles = []*os.File{theirs} // descriptor 3
	cmd.Env = append(slices.Clone(cmd.Env), reportsVariable+"=3")
	return reports, theirs, nil
}

// follow reads reports until one says how the sandbox is isolated: then it has started.
func (p *Program) follow(reports *os.File) {
	defer close(p.begun)
	defer guard.Recover(nil)
	if reports == nil {
		return
	}
	defer reports.Close()
	decoder := json.NewDecoder(io.LimitReader(reports, maxReports))
	for {
		var report struct {
			Isolation string `json:"isolation"`
		}
		if decoder.Decode(&report) != nil || report.Isolation != "" {
			return
		}
	}
}

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
	go func() {
		defer guard.Recover(nil)
		_ = p.frames.Write(frame.Request{Type: frame.Interrupt})
	}()
}

// Kill ends the sandbox.
func (p *Program) Kill() { p.process.Kill() }

// Begun is closed when the sandbox has started, or at once if its program does not report that.
// A virtual machine may take minutes if it is emulated.
func (p *Program) Begun() <-chan struct{} { return p.begun }

// Ended is closed when the program and its sandbox are gone.
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

package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/outputs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox/framed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

const (
	// lookWithin bounds the wait for the list of files that the code has left.
	lookWithin = 30 * time.Second
	// closeWithin bounds the wait for the end of the sandbox.
	closeWithin = 3 * time.Second
)

// program is a program of the user's in a new sandbox. It is a [terminal.Program].
type program struct {
	env     chosen
	starter *framed.Starter
	box     sandbox.Visitable
	stream  sandbox.Stream

	ended     chan struct{}
	unwritten error
	killed    bool // by the user, or at its time limit
}

// Kill ends the sandbox.
func (p *program) Kill() {
	p.killed = true
	p.box.Kill()
}

// Type sends input to the program.
func (p *program) Type(data []byte) error {
	_, err := p.stream.Write(data)
	return err
}

// CloseInput ends the program's input.
func (p *program) CloseInput() error { return p.stream.CloseWrite() }

// Resize tells the program its terminal's new size.
func (p *program) Resize(t frame.Terminal) error { return p.stream.Resize(t) }

// Ended is closed when the program has ended and its output is written.
func (p *program) Ended() <-chan struct{} { return p.ended }

// startProgram starts a program in a new sandbox, and ends the start if a signal comes. The sandbox logs to log. The
// caller closes the program.
func startProgram(env chosen, request frame.Request, stdout, stderr, log io.Writer, signals <-chan os.Signal) (*program, error) {
	groups, err := env.groups()
	if err != nil {
		return nil, err
	}
	options := service.Options{Host: env.host, Variables: env.inherited}
	spec := options.Spec(env.Environment)
	if spec.Network {
		// Its proxy logs what it refuses, which the user reads at once.
		spec.Network, spec.Asks = false, false
		spec.Overhead = sandbox.Limits(cgroup.Limits(spec.Overhead).WithNetwork())
	}
	spec.Upper = env.host.Project.IsOverlay()
	spec.Warm = true // so that it has its variables before code runs
	p := &program{env: env, ended: make(chan struct{})}
	p.starter = framed.New(slog.New(framed.Lines(func(line string) {
		// The agent's own lines are for a server: the remarks have their substance.
		if !strings.HasPrefix(line, "nix-sandbox-agent: ") {
			fmt.Fprintln(log, line)
		}
	})), framed.Options{StartTimeout: env.settings.StartWithin, Groups: groups})
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	begun := make(chan struct{})
	defer close(begun)
	go func() {
		for {
			select {
			case sig := <-signals:
				if sig != syscall.SIGPIPE {
					stop(command.Exit(128 + int(sig.(syscall.Signal))))
				}
			case <-begun:
				return
			}
		}
	}()
	box, err := p.starter.Start(ctx, spec)
	if err == nil {
		p.box = box.(sandbox.Visitable)
		p.stream, err = p.box.Open(ctx, request, nil)
	}
	switch {
	case ctx.Err() != nil:
		p.close()
		return nil, context.Cause(ctx)
	case err != nil:
		p.close()
		return nil, cmp.Or(env.unstarted(), err)
	}
	go p.show(stdout, stderr)
	return p, nil
}

// unstarted is the error of a machine that lacks a thing which sandboxes need; nil if it has all of them.
func (c chosen) unstarted() error {
	for _, f := range machine.Check(context.Background(), []registry.Environment{c.Environment}) {
		if f.Needed && !f.OK {
			return command.End(command.NoSandbox, "the sandbox did not start: "+f.Found, cmp.Or(f.Fix, "see "+cli.Program+" doctor"))
		}
	}
	return nil
}

// show writes the output as it comes. If it cannot be written, the code finds its pipes closed.
func (p *program) show(stdout, stderr io.Writer) {
	defer close(p.ended)
	buffer := make([]byte, frame.StreamPart)
	for {
		n, name, err := p.stream.Next(buffer)
		if err != nil {
			return
		}
		to := stdout
		if name == frame.Stderr {
			to = stderr
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			p.unwritten = err
			p.stream.Close()
			return
		}
	}
}

// feed copies in to the code's standard input until either ends.
func (p *program) feed(in io.Reader) {
	_, _ = io.Copy(p.stream, in)
	_ = p.CloseInput()
}

// Wait waits for the end of the program and returns its exit status: 128 + N if signal N ended it. That its output could
// not be written is an error, unless the reader of the output went away.
func (p *program) Wait() (int, error) {
	<-p.ended
	switch {
	case errors.Is(p.unwritten, syscall.EPIPE):
		return 128 + int(syscall.SIGPIPE), nil
	case p.unwritten != nil:
		return 0, fmt.Errorf("not all that the code printed could be written: %w", p.unwritten)
	}
	return p.stream.ExitCode(), nil
}

// left returns the remarks that the model would read, after the files that the program has left are copied to kept.
// Without files, it leaves these out.
func (p *program) left(kept *outputs.Folder, files bool) []string {
	if p.killed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookWithin)
	defer cancel()
	// A call without code finds the files, and the limit that was crossed.
	ran, err := p.box.Run(ctx, sandbox.Request{Timeout: lookWithin})
	result := call.Result{Result: ran}
	if ran.Limit != nil {
		result.Outcome = frame.OutcomeLimit
	}
	switch {
	case !files:
		result.Files = nil
	case kept != nil && len(result.Files) > 0:
		result.Notes = append(result.Notes, kept.Copy(ctx, "", ".", p.box, result.Files))
		result.Files = nil
	}
	lines := tool.Remarks(call.Call{Env: p.env.Environment}, result, err)
	if len(result.Files) > 0 {
		lines = append(lines, cli.Program+": hint: --outputs DIR copies those in /workspace/outputs")
	}
	if p.changesProject() {
		lines = append(lines, cli.Program+": hint: changes to the project end with the sandbox; "+cli.Program+" exec keeps them as a patch")
	}
	return lines
}

// changesProject reports whether the layer above the project has a file.
func (p *program) changesProject() bool {
	if !p.env.host.Project.IsOverlay() {
		return false
	}
	layered, _ := p.box.(sandbox.Layered)
	if layered == nil {
		return false
	}
	upper := layered.Upper()
	if upper == nil {
		return false
	}
	defer upper.Close()
	names, _ := upper.Readdirnames(1)
	return len(names) > 0
}

// close ends the sandbox.
func (p *program) close() { p.starter.Close(closeWithin) }

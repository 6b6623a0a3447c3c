// Package interactive connects one program of a sandbox to a user: code and
// input arrive in frames, the program's output leaves as it is, and its exit
// status is the agent's.
//
// The terminal of a program is made inside the sandbox. The sandbox has no descriptor of
// the user's own terminal, so code cannot type into it or change its settings. The end of
// the frames ends everything.
package interactive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/oneshot"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// maxWaiting is how many frames of input wait for the program before the agent stops
// reading frames.
const maxWaiting = 16

// shells are tried in this order.
var shells = []string{"bash", "/bin/sh"}

// prompt is bash's PS1: a word that tells the sandbox from other machines, and the folder.
const prompt = `sandbox:$PWD\$ `

// errGone reports that the frames have ended before the program.
var errGone = errors.New("the other end is gone")

// Serve runs the program that the first frame asks for and returns its exit
// status. The program's output goes to spec.Stdout and spec.Stderr.
func Serve(ctx context.Context, table *process.Table, keeper *limitkeeper.Keeper, spec interpreter.Spec, in io.Reader) (int, error) {
	frames := frame.NewReader(in)
	var first frame.Request
	if err := frames.Read(&first); err != nil {
		return 0, fmt.Errorf("read the first frame: %w", err)
	}
	for name, value := range first.Env {
		spec.Env = set(spec.Env, name, value)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	switch {
	case first.Type == frame.Execute:
		return execute(ctx, stop, table, keeper, spec, first.Contents, frames)
	case first.Type == frame.Open && first.Terminal != nil:
		return open(ctx, stop, table, keeper, spec, *first.Terminal, frames)
	}
	return 0, fmt.Errorf("the first frame is %.20q, not %s or %s", first.Type, frame.Execute, frame.Open)
}

// execute runs code with the input of later frames as its stdin.
func execute(ctx context.Context, stop context.CancelCauseFunc, table *process.Table, keeper *limitkeeper.Keeper, spec interpreter.Spec, code []byte, frames *frame.Reader) (int, error) {
	stdin, input, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("make the code's stdin: %w", err)
	}
	defer stdin.Close()
	interpreter.Blocking(stdin)
	spec.Null = stdin
	signals := make(chan os.Signal, 1)
	go func() {
		stop(receive(frames, input, func(r frame.Request) {
			if r.Type == frame.Interrupt {
				select {
				case signals <- unix.SIGINT:
				default: // an earlier one has not been passed on yet
				}
			}
		}))
	}()
	return oneshot.Run(ctx, table, keeper, spec, bytes.NewReader(code), signals)
}

// open runs a shell on a new terminal.
func open(ctx context.Context, stop context.CancelCauseFunc, table *process.Table, keeper *limitkeeper.Keeper, spec interpreter.Spec, terminal frame.Terminal, frames *frame.Reader) (int, error) {
	return oneshot.UnderLimits(ctx, table, keeper, spec.Stderr, func(ctx context.Context) (int, error) {
		p, master, err := onTerminal(table, spec, terminal, spec.Env)
		if err != nil {
			return 0, err
		}
		defer master.Close()
		shown := make(chan struct{})
		go func() {
			defer close(shown)
			// A read fails with EIO once no process has the terminal open.
			_, _ = io.Copy(spec.Stdout, master)
		}()
		go func() {
			stop(receive(frames, keepOpen{master}, func(r frame.Request) {
				if r.Type == frame.Resize && r.Terminal != nil {
					_ = resize(master, *r.Terminal)
				}
			}))
		}()
		select {
		case <-p.Done():
		case <-ctx.Done():
			p.Kill()
			return 0, context.Cause(ctx)
		}
		// Background processes have the terminal too.
		table.KillAll()
		select {
		case <-shown:
		case <-ctx.Done():
		}
		return p.ExitCode(), nil
	})
}

// program returns the path and the arguments of a shell or, if own is set, of the
// interpreter.
func program(spec interpreter.Spec, own bool) (string, []string, error) {
	if own {
		args := slices.Clone(spec.Command)
		// Code would follow these options.
		if last := args[len(args)-1]; len(args) > 1 && (last == "-c" || last == "-e") {
			args = args[:len(args)-1]
		}
		path, err := exec.LookPath(args[0])
		if err != nil {
			return "", nil, fmt.Errorf("interpreter %s: %w", args[0], err)
		}
		return path, args, nil
	}
	for _, shell := range shells {
		if path, err := exec.LookPath(shell); err == nil {
			return path, []string{shell}, nil
		}
	}
	return program(spec, true)
}

// resize sets the size of a terminal; the kernel sends SIGWINCH to its programs.
func resize(terminal *os.File, t frame.Terminal) error {
	size := unix.Winsize{Row: t.Rows, Col: t.Columns}
	if err := control(terminal, func(fd int) error { return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &size) }); err != nil {
		return fmt.Errorf("set the terminal's size: %w", err)
	}
	return nil
}

// control does something to the descriptor of a file, which stays non-blocking; File.Fd changes that.
func control(file *os.File, do func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) { err = do(int(fd)) }); failed != nil {
		return failed
	}
	return err
}

// receive writes the input in frames to w and gives other frames to other, until
// the frames end. The error is the reason for their end.
func receive(frames *frame.Reader, w io.WriteCloser, other func(frame.Request)) error {
	input := make(chan []byte, maxWaiting)
	defer close(input)
	go func() {
		defer w.Close()
		closed := false
		for data := range input {
			if len(data) == 0 {
				w.Close()
				closed = true
			}
			// A program that has closed its input goes on.
			if !closed {
				_, err := w.Write(data)
				closed = err != nil
			}
		}
	}()
	for {
		var r frame.Request
		if err := frames.Read(&r); err != nil {
			if errors.Is(err, io.EOF) {
				return errGone
			}
			return fmt.Errorf("read the input: %w", err)
		}
		if r.Type == frame.Input {
			input <- r.Contents
		} else {
			other(r)
		}
	}
}

// keepOpen is a terminal: there the end of input is a character, and not a close.
type keepOpen struct{ *os.File }

func (keepOpen) Close() error { return nil }

// set returns variables of the environment with one of them set.
func set(variables []string, name, value string) []string {
	kept := slices.DeleteFunc(slices.Clone(variables), func(v string) bool { return strings.HasPrefix(v, name+"=") })
	return append(kept, name+"="+value)
}

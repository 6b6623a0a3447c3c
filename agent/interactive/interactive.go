// Package interactive carries one program of a sandbox to a person: its code or a
// terminal comes in by frames, its bytes leave as they are, and its exit
// status is the agent's.
//
// The terminal is made in here, of the sandbox's own kind: no descriptor of
// the person's terminal is in the sandbox, so nothing in it can type into that
// or change how it behaves. End of the frames ends everything.
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

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/oneshot"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
)

// waiting is how many frames of input wait for a program to read them; more
// are not taken from the sender.
const waiting = 16

// shells are tried in this order.
var shells = []string{"bash", "/bin/sh"}

// prompt is bash's: the folder, after a word that no other machine shows.
const prompt = `sandbox:$PWD\$ `

// errGone is how the program ends where nobody is there any more.
var errGone = errors.New("the other end is gone")

// Serve runs the program that the first frame asks for and returns its exit
// status. Its output goes to spec.Stdout and spec.Stderr.
func Serve(ctx context.Context, table *process.Table, guard *limitkeeper.Keeper, spec interpreter.Spec, in io.Reader) (int, error) {
	frames := frame.NewReader(in)
	var first frame.Request
	if err := frames.Read(&first); err != nil {
		return 0, fmt.Errorf("read what to run: %w", err)
	}
	for name, value := range first.Env {
		spec.Env = set(spec.Env, name, value)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	switch {
	case first.Type == frame.Execute:
		return execute(ctx, stop, table, guard, spec, first.Contents, frames)
	case first.Type == frame.Open && first.Terminal != nil:
		return open(ctx, stop, table, guard, spec, *first.Terminal, frames)
	}
	return 0, fmt.Errorf("the first frame is %.20q, not %s or %s", first.Type, frame.Execute, frame.Open)
}

// execute runs code, whose stdin is the input that comes after it.
func execute(ctx context.Context, stop context.CancelCauseFunc, table *process.Table, guard *limitkeeper.Keeper, spec interpreter.Spec, code []byte, frames *frame.Reader) (int, error) {
	stdin, typed, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("make the code's stdin: %w", err)
	}
	defer stdin.Close()
	interpreter.Blocking(stdin)
	spec.Null = stdin
	signals := make(chan os.Signal, 1)
	go func() {
		stop(receive(frames, typed, func(r frame.Request) {
			if r.Type == frame.Interrupt {
				select {
				case signals <- unix.SIGINT:
				default: // one is on its way
				}
			}
		}))
	}()
	return oneshot.Run(ctx, table, guard, spec, bytes.NewReader(code), signals)
}

// open runs a shell on a new terminal.
func open(ctx context.Context, stop context.CancelCauseFunc, table *process.Table, guard *limitkeeper.Keeper, spec interpreter.Spec, terminal frame.Terminal, frames *frame.Reader) (int, error) {
	path, words, err := program(spec, terminal.Interpreter)
	if err != nil {
		return 0, err
	}
	if len(spec.Limiter) > 0 {
		words[0] = path
		path, words = spec.Limiter[0], slices.Concat(spec.Limiter, words)
	}
	person, theirs, err := pty.Open()
	if err != nil {
		return 0, fmt.Errorf("make a terminal: %w", err)
	}
	defer person.Close()
	if err := resize(person, terminal); err != nil {
		theirs.Close()
		return 0, err
	}
	env := set(spec.Env, "PS1", prompt)
	if terminal.Term != "" {
		env = set(env, "TERM", terminal.Term)
	}
	return oneshot.Hold(ctx, table, guard, spec.Stderr, func(ctx context.Context) (int, error) {
		p, err := table.Start(process.Command{
			Path: path, Words: words, Env: env, Dir: spec.Root,
			Files: []*os.File{theirs, theirs, theirs}, Terminal: true,
		})
		theirs.Close()
		if err != nil {
			return 0, err
		}
		shown := make(chan struct{})
		go func() {
			defer close(shown)
			// It ends with EIO when no process has the terminal any more.
			_, _ = io.Copy(spec.Stdout, person)
		}()
		go func() {
			stop(receive(frames, keepOpen{person}, func(r frame.Request) {
				if r.Type == frame.Resize && r.Terminal != nil {
					_ = resize(person, *r.Terminal)
				}
			}))
		}()
		select {
		case <-p.Done():
		case <-ctx.Done():
			p.Kill()
			return 0, context.Cause(ctx)
		}
		// What it left running has the terminal too.
		table.KillAll()
		select {
		case <-shown:
		case <-ctx.Done():
		}
		return p.ExitCode(), nil
	})
}

// program finds the shell, or the interpreter where that is asked for: its
// path and its words.
func program(spec interpreter.Spec, own bool) (string, []string, error) {
	if own {
		words := slices.Clone(spec.Command)
		// What would follow these is code.
		if last := words[len(words)-1]; len(words) > 1 && (last == "-c" || last == "-e") {
			words = words[:len(words)-1]
		}
		path, err := exec.LookPath(words[0])
		if err != nil {
			return "", nil, fmt.Errorf("interpreter %s: %w", words[0], err)
		}
		return path, words, nil
	}
	for _, shell := range shells {
		if path, err := exec.LookPath(shell); err == nil {
			return path, []string{shell}, nil
		}
	}
	return program(spec, true)
}

// resize gives a terminal its size; the kernel tells the programs on it.
func resize(terminal *os.File, t frame.Terminal) error {
	if err := pty.Setsize(terminal, &pty.Winsize{Rows: t.Rows, Cols: t.Columns}); err != nil {
		return fmt.Errorf("set the terminal's size: %w", err)
	}
	return nil
}

// receive writes the input that comes to w, and hands other frames to other,
// until the frames end. The error is why they did.
func receive(frames *frame.Reader, w io.WriteCloser, other func(frame.Request)) error {
	typed := make(chan []byte, waiting)
	defer close(typed)
	go func() {
		defer w.Close()
		broken := false
		for data := range typed {
			if len(data) == 0 {
				w.Close()
				broken = true
			}
			// A program that reads no more is no reason to end.
			if !broken {
				_, err := w.Write(data)
				broken = err != nil
			}
		}
	}()
	for {
		var r frame.Request
		if err := frames.Read(&r); err != nil {
			if errors.Is(err, io.EOF) {
				return errGone
			}
			return fmt.Errorf("read what was typed: %w", err)
		}
		switch r.Type {
		case frame.Input:
			typed <- r.Contents
		default:
			other(r)
		}
	}
}

// keepOpen is a terminal: the end of the input is typed, not closed.
type keepOpen struct{ *os.File }

func (keepOpen) Close() error { return nil }

// set returns the variables with one of them set.
func set(variables []string, name, value string) []string {
	kept := slices.DeleteFunc(slices.Clone(variables), func(v string) bool { return strings.HasPrefix(v, name+"=") })
	return append(kept, name+"="+value)
}

// Package batch runs one piece of code as a program: its stdout and stderr
// are the agent's own, and its exit status is the agent's.
package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
)

// MaxCode is the longest code, in bytes: that of a frame.
const MaxCode = 16 << 20

// grace is how long code may take to end after a signal was passed on to it.
const grace = 2 * time.Second

// Run reads code up to the end of in, runs it and returns its exit status.
// Signals that arrive are passed on to the code; what does not end then is
// killed.
func Run(ctx context.Context, table *process.Table, spec interpreter.Spec, in io.Reader, signals <-chan os.Signal) (int, error) {
	code, err := io.ReadAll(io.LimitReader(in, MaxCode+1))
	if err != nil {
		return 0, fmt.Errorf("read code from stdin: %w", err)
	}
	if len(code) > MaxCode {
		return 0, fmt.Errorf("code is longer than %d MiB", MaxCode>>20)
	}
	if spec.Null, err = os.Open(os.DevNull); err != nil {
		return 0, err
	}
	defer spec.Null.Close()
	p, err := start(table, &spec, string(code))
	if err != nil {
		return 0, err
	}
	defer table.KillAll()
	var kill <-chan time.Time
	for {
		select {
		case <-p.Done():
			return p.ExitCode(), nil
		case sig := <-signals:
			p.Signal(sig.(unix.Signal))
			if kill == nil {
				kill = time.After(grace)
			}
		case <-kill:
			p.Kill()
			kill = nil
		case <-ctx.Done():
			p.Kill()
			return 0, ctx.Err()
		}
	}
}

// start starts the interpreter with the code and returns its process.
func start(table *process.Table, spec *interpreter.Spec, code string) (*process.Process, error) {
	if !spec.Sessions() {
		return interpreter.RunCommand(table, spec, code)
	}
	i, err := interpreter.Start(table, spec, nil)
	if err != nil {
		return nil, err
	}
	select {
	case r, ok := <-i.Replies():
		switch {
		case !ok:
			err = errors.New("its driver has ended")
		case r.Err != nil:
			err = r.Err
		case r.Kind != driver.Ready:
			err = errors.New("its driver does not answer as it should")
		}
	case <-i.Done():
		err = fmt.Errorf("exit status %d", i.ExitCode())
	}
	if err == nil {
		_, err = i.Run(code, 1, true)
	}
	if err != nil {
		i.Kill()
		return nil, fmt.Errorf("interpreter %s: %w", spec.Command[0], err)
	}
	return i.Process, nil
}

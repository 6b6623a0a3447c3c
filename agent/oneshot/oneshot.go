// Package oneshot runs one piece of code as a program: its stdout and stderr
// are the agent's own, and its exit status is the agent's.
package oneshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
)

// MaxCode is the longest code, in bytes: that of a frame.
const MaxCode = 16 << 20

// grace is how long code may take to end after a signal was passed on to it.
const grace = 2 * time.Second

// stopped is the exit status of code that crossed a limit: that of SIGKILL,
// which ended it.
const stopped = 128 + int(unix.SIGKILL)

// Run reads code up to the end of in, runs it and returns its exit status.
// Signals that arrive are passed on to the code; what does not end then is
// killed. guard holds the code to its limits; nil where there are none. The
// code's stdin is spec.Null, or empty where that is nil.
func Run(ctx context.Context, table *process.Table, guard *limitkeeper.Keeper, spec interpreter.Spec, in io.Reader, signals <-chan os.Signal) (int, error) {
	return Hold(ctx, table, guard, spec.Stderr, func(ctx context.Context) (int, error) {
		return run(ctx, table, spec, in, signals)
	})
}

// Hold holds everything in the sandbox to its limits while run runs, whose
// results it returns. Where a limit is crossed it kills all, and tells log.
func Hold(ctx context.Context, table *process.Table, guard *limitkeeper.Keeper, log io.Writer, run func(context.Context) (int, error)) (int, error) {
	if guard == nil {
		return run(ctx)
	}
	ctx, stop := context.WithCancelCause(ctx)
	var crossed atomic.Pointer[limitkeeper.Crossing]
	var watched sync.WaitGroup
	watched.Go(func() {
		if err := guard.Run(ctx, func(c limitkeeper.Crossing) {
			crossed.Store(&c)
			table.KillAll()
		}); err != nil {
			stop(err)
		}
	})
	guard.Busy(true)
	status, err := run(ctx)
	stop(nil)
	watched.Wait()
	if c := crossed.Load(); c != nil {
		fmt.Fprintf(log, "nix-sandbox-agent: stopped: %v\n", c)
		return stopped, nil
	}
	return status, err
}

func run(ctx context.Context, table *process.Table, spec interpreter.Spec, in io.Reader, signals <-chan os.Signal) (int, error) {
	var err error
	if spec.Null == nil {
		if spec.Null, err = os.Open(os.DevNull); err != nil {
			return 0, err
		}
		defer spec.Null.Close()
	}
	defer table.KillAll()
	// The interpreter loads while the code is still being read.
	var i *interpreter.Interpreter
	if spec.Sessions() {
		if i, err = interpreter.Start(table, &spec, nil); err != nil {
			return 0, err
		}
		defer i.Kill()
	}
	source := make(chan text, 1)
	go read(in, source) // ends with the program where in does not
	var code text
	select {
	case code = <-source:
	case sig := <-signals:
		return 128 + int(sig.(unix.Signal)), nil
	}
	if code.err != nil {
		return 0, code.err
	}
	p, nonce, err := start(table, &spec, i, code.string)
	if err != nil {
		return 0, err
	}
	var replies <-chan interpreter.Reply
	if i != nil {
		replies = i.Replies()
	}
	var kill <-chan time.Time
	for {
		select {
		case <-p.Done():
			return p.ExitCode(), nil
		case r, ok := <-replies:
			switch {
			case !ok || r.Err != nil:
				replies = nil // the code's own doing
			case r.Kind == driver.Done && r.Nonce == nonce:
				return r.Status, nil
			}
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
			return 0, context.Cause(ctx)
		}
	}
}

// text is code that was read.
type text struct {
	string
	err error
}

func read(in io.Reader, to chan<- text) {
	code, err := io.ReadAll(io.LimitReader(in, MaxCode+1))
	switch {
	case err != nil:
		err = fmt.Errorf("read code from stdin: %w", err)
	case len(code) > MaxCode:
		err = fmt.Errorf("code is longer than %d MiB", MaxCode>>20)
	}
	to <- text{string(code), err}
}

// start runs code in the interpreter, or as a command where there is none,
// and returns the process whose end is the code's, or the nonce of a reply
// that comes before that.
func start(table *process.Table, spec *interpreter.Spec, i *interpreter.Interpreter, code string) (p *process.Process, nonce uint64, err error) {
	if i == nil {
		p, err = interpreter.RunCommand(table, spec, code)
		return p, 0, err
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
		nonce, err = i.Run(code, 1, true)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("interpreter %s: %w", spec.Command[0], err)
	}
	return i.Process, nonce, nil
}

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

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/attempt"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/script"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// MaxCode is the length of the longest code, in bytes: that of a frame.
const MaxCode = 16 << 20

// grace is how long code may take to end after a signal.
const grace = 2 * time.Second

// stopped is the exit status of code that crossed a limit and was killed.
const stopped = 128 + int(unix.SIGKILL)

// Run reads code up to the end of in, runs it and returns its exit status. Signals are
// passed on to the code, which is killed if it does not end then. If a signal arrives
// before the code runs, Run returns the exit status for that signal. keeper enforces the
// limits, and is nil if there are none. The code's stdin is spec.Null, or empty if that is
// nil.
func Run(ctx context.Context, table *process.Table, keeper *limitkeeper.Keeper, spec interpreter.Spec, in io.Reader, signals <-chan os.Signal) (int, error) {
	return underLimits(ctx, table, keeper, spec.Stderr, func(ctx context.Context) (int, error) {
		spec := spec
		var finish func() error
		var err error
		if spec.Stdout, spec.Stderr, finish, err = pipes(spec.Stdout, spec.Stderr); err != nil {
			return 0, err
		}
		status, err := Code(ctx, table, spec, in, signals)
		table.KillAll()
		if unwritten := finish(); err == nil {
			err = unwritten
		}
		return status, err
	})
}

// underLimits calls run and returns its results. Meanwhile keeper enforces the limits of
// the sandbox: if one is crossed, everything is killed, and a line is written to log.
func underLimits(ctx context.Context, table *process.Table, keeper *limitkeeper.Keeper, log io.Writer, run func(context.Context) (int, error)) (int, error) {
	if keeper == nil {
		return run(ctx)
	}
	ctx, stop := context.WithCancelCause(ctx)
	var crossing atomic.Pointer[limitkeeper.Crossing]
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := keeper.Run(ctx, func(c limitkeeper.Crossing) {
			crossing.Store(&c)
			table.KillAll()
		}); err != nil {
			stop(err)
		}
	})
	keeper.Busy(true)
	status, err := run(ctx)
	keeper.Report(func(c limitkeeper.Crossing) { crossing.Store(&c) })
	stop(nil)
	wg.Wait()
	if c := crossing.Load(); c != nil {
		fmt.Fprintf(log, "nix-sandbox-agent: stopped: %v\n", c)
		return stopped, nil
	}
	return status, err
}

// Code is Run without limits, and beside other processes of the table.
func Code(ctx context.Context, table *process.Table, spec interpreter.Spec, in io.Reader, signals <-chan os.Signal) (int, error) {
	status, err := run(ctx, table, spec, in, signals)
	var signal ended
	if errors.As(err, &signal) {
		return 128 + int(signal), nil
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
	try := attempt.Attempt{Grace: grace, Signals: signals}
	// The interpreter loads while the code is still being read.
	loaded := make(chan error, 1)
	if spec.Sessions() {
		if try.Interpreter, err = interpreter.Start(table, &spec, nil); err != nil {
			return 0, err
		}
		defer try.Interpreter.Kill()
		try.Process = try.Interpreter.Process
		go func() { loaded <- attempt.Load(ctx, try.Interpreter, spec.LoadTimeout()) }()
	}
	reading := make(chan source, 1)
	go read(in, reading) // may last as long as the program
	code, err := await(ctx, signals, reading)
	if err == nil {
		err = code.err
	}
	if err != nil {
		return 0, err
	}
	code.text = script.Clean(code.text)
	if other := spec.Script(code.text); other != nil {
		defer other.Close()
		if try.Interpreter != nil {
			try.Interpreter.Kill()
			try.Interpreter = nil
		}
		try.Process, err = other.Run(table)
	} else if try.Interpreter == nil {
		try.Process, err = interpreter.RunCommand(table, &spec, code.text)
	} else if try.Nonce, err = giveCode(ctx, signals, loaded, try.Interpreter, code.text); err != nil {
		err = fmt.Errorf("interpreter %s: %w", spec.Command[0], err)
	}
	if err != nil {
		return 0, err
	}
	end, err := try.Wait(ctx)
	if err == nil && !end.Exited {
		err = context.Cause(ctx) // nil if the driver has answered
	}
	return end.Status, err
}

// giveCode gives code to an interpreter as soon as it has loaded, and returns the
// nonce of the reply.
func giveCode(ctx context.Context, signals <-chan os.Signal, loaded <-chan error, i *interpreter.Interpreter, code string) (uint64, error) {
	failure, err := await(ctx, signals, loaded)
	if err == nil {
		err = failure
	}
	if err != nil {
		return 0, err
	}
	return i.Run(code, 1, true)
}

// ended is the signal that ended a run before its code began.
type ended unix.Signal

func (e ended) Error() string { return unix.Signal(e).String() }

// await receives a value, unless ctx is done or a signal arrives before.
func await[T any](ctx context.Context, signals <-chan os.Signal, values <-chan T) (value T, err error) {
	select {
	case value = <-values:
		return value, nil
	case signal := <-signals:
		return value, ended(signal.(unix.Signal))
	case <-ctx.Done():
		return value, context.Cause(ctx)
	}
}

// source is code that was read.
type source struct {
	text string
	err  error
}

func read(in io.Reader, to chan<- source) {
	code, err := bounded.Read(in, MaxCode)
	if err != nil {
		err = fmt.Errorf("read code from stdin: %w", err)
	}
	to <- source{string(code), err}
}

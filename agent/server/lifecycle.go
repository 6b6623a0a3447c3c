package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/attempt"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/output"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// phase is the state of the interpreter's process.
type phase int

const (
	absent  phase = iota // it could not start or has ended; always so for a command
	loading              // it was started, and its driver has not answered yet
	ready                // its driver waits for code, or runs it
	ending               // it has run a one-shot call and is to be killed
)

// start starts the interpreter in the phase absent. file is the state of an earlier
// interpreter, or nil; start owns it. A failure answers the pings that wait, and the next
// call tries again.
func (e *executor) start(file *os.File) error {
	e.pings.started()
	current, err := interpreter.Start(e.table, &e.spec, file)
	if err != nil {
		if file != nil {
			e.lose()
		}
		e.logf("%v", err)
		e.pings.answerAll(err)
		return err
	}
	e.current, e.phase = current, loading
	return nil
}

// load waits until the driver is loaded, but not beyond the call's deadline. If an
// interpreter cannot load with the state of an earlier one, another starts without it.
func (e *executor) load(ctx context.Context, deadline time.Time) error {
	for {
		if e.phase == absent {
			if err := e.start(nil); err != nil {
				return err
			}
		}
		if e.phase == ready {
			return nil
		}
		err := attempt.Load(ctx, e.current, min(e.spec.LoadTimeout(), time.Until(deadline)))
		if err == nil {
			e.phase = ready
			e.pings.answerAll(nil)
			return nil
		}
		if c := e.takeCrossing(); c != nil {
			err = errors.New(c.String())
			if e.isTooSmall() {
				e.stop(tooSmall(*c))
				return err
			}
		}
		restored := e.held
		if err := e.kill(); err != nil {
			return err
		}
		if restored && time.Now().Before(deadline) {
			continue
		}
		err = fmt.Errorf("%s did not load: %w", e.spec.Command[0], err)
		e.pings.answerAll(err)
		if restored {
			_ = e.start(nil)
		}
		return err
	}
}

// between handles an event between two calls: the driver has loaded, or the interpreter
// has ended. ok is false if it has ended.
func (e *executor) between(ctx context.Context, r interpreter.Reply, ok bool) error {
	err := r.Err
	switch {
	case err != nil:
	case ok && r.Kind == driver.Ready && e.phase == loading:
		if err = e.warm(ctx); err == nil {
			e.phase = ready
			e.pings.answerAll(nil)
			return nil
		}
	default:
		err = errors.New("it ended between two calls")
	}
	held := e.held
	if c := e.takeCrossing(); c != nil {
		err = errors.New(c.String())
		if e.isTooSmall() {
			return tooSmall(*c)
		}
	}
	e.logf("interpreter is lost: %v", err)
	// A session's next call is likely to come. An interpreter that ended before its first
	// call may do so each time, and starts again only with a call.
	restart := held && e.phase == ready
	if err := e.kill(); err != nil {
		return err
	}
	if restart {
		_ = e.start(nil)
		return nil
	}
	e.pings.answerAll(fmt.Errorf("%s did not load: %w", e.spec.Command[0], err))
	return nil
}

// warm runs a small piece of code if a ping waits and no call does, so that the first call
// finds everything loaded, compiled and mapped.
func (e *executor) warm(ctx context.Context) error {
	if !e.pings.pending() || e.number > 0 || len(e.queue) > 0 {
		return nil
	}
	_, err := e.prepare(ctx, e.spec.Driver.Warm, attempt.Deadline(e.spec.LoadTimeout()))
	return err
}

// reseed answers a request to give the interpreter other random numbers than the original
// that it is a copy of. If its driver cannot do that, it is started again, unless it has run
// code: variables are worth more.
func (e *executor) reseed(ctx context.Context, req frame.Request) error {
	if e.phase == ready {
		err := errors.New("it has no code for that")
		if e.spec.Driver.Reseed != "" {
			_, err = e.prepare(ctx, e.spec.Driver.Reseed, attempt.Deadline(e.spec.LoadTimeout()))
		}
		switch {
		case err == nil:
		case e.number > 0:
			e.logf("the interpreter has the random numbers of another copy, because it cannot be reseeded: %v", err)
		default:
			e.logf("the interpreter is started anew, because it cannot be reseeded: %v", err)
			if err := e.kill(); err != nil {
				return err
			}
			_ = e.start(nil) // the first call tries again
		}
	}
	return e.out.Write(frame.Reply{Type: frame.Reseeded, ID: req.ID})
}

// grow answers a request to use the programs and modules of a larger environment, whose store is there by
// now. A running interpreter goes on.
func (e *executor) grow(ctx context.Context, req frame.Request) error {
	reply := frame.Reply{Type: frame.Grown, ID: req.ID}
	path := req.Env["PATH"]
	if err := os.Setenv("PATH", path); err != nil { // by which the agent finds programs
		return err
	}
	e.setEnv(req.Env)
	if e.phase == ready {
		programs, _, _ := strings.Cut(path, ":")
		status, err := e.prepare(ctx, e.spec.Driver.GrowCode(programs), attempt.Deadline(e.spec.LoadTimeout()))
		if err == nil && status != 0 {
			err = fmt.Errorf("exit status %d", status)
		}
		if err != nil {
			reply = frame.Reply{Type: frame.Error, ID: req.ID, Message: "the interpreter cannot use further packages: " + err.Error()}
		}
	}
	return e.out.Write(reply)
}

// prepare runs code from the driver, outside of any call, in the phase ready, and returns its exit
// status.
func (e *executor) prepare(ctx context.Context, code string, deadline time.Time) (status int, err error) {
	nonce, err := e.current.Run(code, 0, false)
	if err != nil {
		return 0, err
	}
	try := attempt.Attempt{
		Process: e.current.Process, Interpreter: e.current, Nonce: nonce,
		Session: true, Deadline: deadline,
	}
	end, err := try.Wait(ctx)
	for _, s := range []*output.Stream{e.stdout, e.stderr} {
		s.Begin(nil)
		s.Drain()
		s.End()
	}
	e.root.Changed()
	switch {
	case err != nil:
		return 0, err
	case end.Broken != nil:
		return 0, end.Broken
	case end.Exited:
		return 0, fmt.Errorf("it ended with its first code, with status %d", end.Status)
	}
	return end.Status, ctx.Err()
}

// kill ends the interpreter and everything beside it, and drops it.
func (e *executor) kill() error {
	if e.phase == absent {
		return nil
	}
	if err := e.current.End(); err != nil {
		return err
	}
	e.drop(false)
	return nil
}

// drop forgets an interpreter that has ended. With keep set it returns the interpreter's
// state, which the caller owns. Otherwise it returns nil, and the state is lost.
func (e *executor) drop(keep bool) *os.File {
	file := e.current.Close()
	e.current, e.phase = nil, absent
	if keep {
		return file
	}
	file.Close()
	e.lose()
	return nil
}

// lose notes that the interpreter has ended without leaving its state.
func (e *executor) lose() { e.held, e.lost = false, e.held || e.lost }

// end ends all processes of the sandbox.
func (e *executor) end() {
	if err := e.kill(); err != nil {
		e.logf("%v", err)
	}
	e.table.KillAll()
}

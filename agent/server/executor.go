package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/attempt"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/output"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/script"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

const (
	// configureWait is how long the executor waits for a configuration before it starts
	// the interpreter. A later configuration costs a second start.
	configureWait = 2 * time.Millisecond
	// lingerTime is how long an interpreter stays after a one-shot call. Usually the
	// runtime ends the sandbox before that. To end it here would take processor time
	// from the answer.
	lingerTime = 100 * time.Millisecond
	// largeCode is the size, in bytes, of the smallest code that is worth returning its
	// memory to the system after the call.
	largeCode = 256 << 10
)

// Exit statuses of code that did not run, as a shell gives them.
const (
	notRunnable = 2
	notStarted  = 127
)

// executor runs calls, one at a time. It is the only goroutine that touches the
// interpreter.
type executor struct {
	*Server
	stdout, stderr *output.Stream
	root           workspace.Root
	files          files

	current *interpreter.Interpreter // nil in the phase absent
	phase   phase
	held    bool         // the interpreter has the state of a session's calls
	lost    bool         // earlier state is lost, and no result has reported it yet
	limit   *frame.Limit // a crossed limit that no result has reported yet
	number  uint64       // of the current call; the first is 1
}

// run executes tasks until ctx is done, and then ends all processes of the sandbox. An
// error ends the sandbox.
func (e *executor) run(ctx context.Context) error {
	defer e.end()
	// The runtime sends a configuration at the start. Taking it first saves a second
	// start of the interpreter.
	var first task
	select {
	case first = <-e.queue:
	case <-time.After(configureWait):
	}
	if first.request.Type == frame.Configure {
		if err := e.configure(first.request); err != nil {
			return err
		}
		first = task{}
	}
	if e.spec.Sessions() {
		_ = e.start(nil)
	} else {
		e.pings.answerAll(nil)
	}
	if first.call != nil || first.request.Type != "" {
		if err := e.do(ctx, first); err != nil {
			return err
		}
	}
	for {
		var replies <-chan interpreter.Reply
		var done <-chan struct{}
		var lingered <-chan time.Time
		switch e.phase {
		case ending:
			lingered = time.After(lingerTime)
		case loading, ready:
			replies, done = e.current.Replies(), e.current.Done()
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-lingered:
			err = e.kill()
		case t := <-e.queue:
			err = e.do(ctx, t)
		case r, ok := <-replies:
			err = e.between(ctx, r, ok)
		case <-done:
			err = e.between(ctx, interpreter.Reply{}, false)
		}
		if err != nil {
			return err
		}
	}
}

func (e *executor) do(ctx context.Context, t task) error {
	if e.phase == ending {
		if err := e.kill(); err != nil {
			return err
		}
	}
	switch t.request.Type {
	case frame.Configure:
		return e.configure(t.request)
	case frame.Save, frame.Restore:
		return e.out.Write(e.answerFiles(t.request))
	case frame.Reseed:
		return e.reseed(ctx, t.request)
	case frame.Grow:
		return e.grow(ctx, t.request)
	}
	if !e.take(t.call) {
		return nil
	}
	e.number++
	replies, err := e.execute(ctx, t.call)
	if err != nil {
		return err
	}
	if err := e.answer(t.call, replies); err != nil {
		return err
	}
	if size := len(t.call.Code); size > largeCode {
		t.call.Code = ""
		debug.FreeOSMemory()
	}
	return nil
}

// configure applies a configuration. It restarts an interpreter that lacks its variables,
// because some have an effect only at start-up (LANG, PYTHONPATH, NODE_OPTIONS).
func (e *executor) configure(req frame.Request) error {
	if e.number > 0 {
		return e.out.Write(frame.Reply{Type: frame.Error, ID: req.ID, Message: "configure must come before the first execute"})
	}
	if req.OutputBytes > 0 {
		e.stdout.SetLimit(req.OutputBytes)
		e.stderr.SetLimit(req.OutputBytes)
	}
	if len(req.Env) == 0 {
		return nil
	}
	e.setEnv(req.Env)
	if e.phase == absent {
		return nil
	}
	if err := e.kill(); err != nil {
		return err
	}
	_ = e.start(nil)
	return nil
}

// setEnv sets variables of interpreters and programs that start later.
func (e *executor) setEnv(variables map[string]string) {
	env := e.spec.Env
	e.spec.Env = nil
	for _, pair := range env {
		name, _, _ := strings.Cut(pair, "=")
		if _, ok := variables[name]; !ok {
			e.spec.Env = append(e.spec.Env, pair)
		}
	}
	for name, value := range variables {
		e.spec.Env = append(e.spec.Env, name+"="+value)
	}
	e.visits.SetEnv(slices.Clone(e.spec.Env))
}

// execute runs a call and returns the last frames to send: the rest of its output and the
// result. An error ends the sandbox.
func (e *executor) execute(ctx context.Context, c *call) ([]any, error) {
	result := frame.Reply{Type: frame.Result, ID: c.ID, Outcome: frame.OutcomeOK}
	if c.Shared {
		e.root.Changed()
	}
	deadline := attempt.Deadline(time.Duration(c.TimeoutMS) * time.Millisecond)
	refusal := e.give(ctx, c, deadline)
	var loose workspace.Loose
	if !c.Keep {
		loose = e.root.Loose()
	}
	out := e.capture(c)
	e.busy(true)
	end, err := e.code(ctx, c, out, deadline, refusal)
	e.busy(false)
	if errors.Is(err, process.ErrUnkillable) {
		return nil, err
	}
	// If the sandbox has to end, no result would be right.
	if cause := context.Cause(ctx); cause != nil && cause != context.Canceled {
		return nil, cause
	}
	result.Limit, e.limit = e.limit, nil
	result.ExitCode = end.Status
	if end.Outcome != "" {
		result.Outcome = end.Outcome
	}
	out.drain()
	if err != nil {
		// The agent's message about a call is part of the call's stderr.
		fmt.Fprintf(e.spec.Stderr, "%s\n", err)
		e.stderr.Drain()
	}
	replies, truncated := out.finish()
	result.Truncated = truncated
	result.Files = e.root.Changed()
	if loose != nil {
		result.Files = append(result.Files, e.root.Left(loose)...)
	}
	if c.Keep {
		result.State = frame.StateKept
		if e.lost || e.phase == absent {
			result.State = frame.StateLost
		}
		e.lost = false
	}
	return append(replies, result), nil
}

// code runs the code of a call and leaves the executor ready for the next call. An error
// says why the code did not run, and is for the caller. Only [process.ErrUnkillable] and
// errors of the frames' stream end the sandbox.
func (e *executor) code(ctx context.Context, c *call, out *capture, deadline time.Time, refusal error) (attempt.Ending, error) {
	program, started, err := e.giveProgram(c.Given)
	if err = cmp.Or(refusal, err); err != nil {
		return attempt.Ending{Status: notRunnable}, err
	}
	defer started()
	try := attempt.Attempt{
		Session:  c.Keep,
		Deadline: deadline,
		Grace:    time.Duration(c.GraceMS) * time.Millisecond,
		Cancel:   c.cancel,
		Flush:    out.flush,
	}
	code := script.Clean(c.Code)
	if other := program.Script(code); other != nil {
		defer other.Close()
		p, err := other.Run(e.table)
		if err != nil {
			return attempt.Ending{Status: notStarted, Outcome: frame.OutcomeCrashed}, err
		}
		try.Process = p
		if !c.Keep && e.phase != absent {
			e.phase = ending
		}
		return e.attempt(ctx, c, &try, out)
	}
	if !e.spec.Sessions() {
		p, err := interpreter.RunCommand(e.table, &program, code)
		if err != nil {
			return attempt.Ending{Status: notStarted, Outcome: frame.OutcomeCrashed}, err
		}
		try.Process = p
		return e.attempt(ctx, c, &try, out)
	}
	nonce, err := e.send(ctx, c, code, deadline)
	switch {
	case err == nil:
	case errors.Is(err, interpreter.ErrCode):
		return attempt.Ending{Status: notRunnable}, err
	case errors.Is(err, attempt.ErrLate) && !time.Now().Before(deadline):
		return attempt.Ending{Status: notStarted, Outcome: frame.OutcomeTimeout}, err
	default:
		return attempt.Ending{Status: notStarted, Outcome: frame.OutcomeCrashed}, err
	}
	if c.Keep {
		e.held = true
	}
	try.Process, try.Interpreter, try.Nonce = e.current.Process, e.current, nonce
	try.Repeat = e.spec.Driver.RepeatInterrupt
	end, err := e.attempt(ctx, c, &try, out)
	switch {
	case err != nil:
		return end, err
	case !end.Exited:
		if !c.Keep {
			e.phase = ending
		}
		return end, nil
	case !c.Keep:
		e.drop(false)
		return end, nil
	}
	if !end.Left && end.Outcome == "" {
		end.Outcome = frame.OutcomeCrashed
	}
	_ = e.start(e.drop(end.Left))
	return end, nil
}

// send gives the code of a call to the interpreter, which it starts if necessary, and
// returns the nonce of the reply. If the interpreter has just closed its end, it is replaced
// once.
func (e *executor) send(ctx context.Context, c *call, code string, deadline time.Time) (nonce uint64, err error) {
	for again := true; ; again = false {
		if err := e.load(ctx, deadline); err != nil {
			return 0, err
		}
		nonce, err := e.current.Run(code, e.number, !c.Keep)
		if err == nil || errors.Is(err, interpreter.ErrCode) {
			return nonce, err
		}
		// The result says so if a limit ended it.
		e.takeCrossing()
		if !again || c.Given != nil {
			return nonce, err
		}
		e.logf("%v", err)
		if err := e.kill(); err != nil {
			return 0, err
		}
	}
}

// attempt waits for the end of a call's code and adds the outcome of a crossed limit.
func (e *executor) attempt(ctx context.Context, c *call, try *attempt.Attempt, out *capture) (attempt.Ending, error) {
	end, err := try.Wait(ctx)
	if end.Broken != nil {
		e.logf("interpreter cannot be used any more: %v", end.Broken)
	}
	if err != nil || !end.Exited {
		return end, err
	}
	switch crossed := e.takeCrossing(); {
	case crossed != nil && crossed.Name == frame.Memory:
		end.Outcome = frame.OutcomeMemory
	case crossed != nil:
		end.Outcome = frame.OutcomeLimit
	}
	if !c.Keep {
		out.drain()
		// A one-shot call leaves no process behind.
		e.table.KillAll()
	}
	return end, nil
}

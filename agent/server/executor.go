package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/output"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
)

const (
	// loadTimeout is how long an interpreter may take to load its driver.
	loadTimeout = 15 * time.Second
	// forever is the time of a call without a limit.
	forever = 10 * 365 * 24 * time.Hour
	// endTimeout is how long a killed process may take to be gone.
	endTimeout = 10 * time.Second
	// linger is how long an interpreter stays whose call without a session has
	// been answered. Whoever asked ends the sandbox before; to end anything here
	// would take the processor from the answer that is on its way.
	linger = 100 * time.Millisecond
	// takeUp is how long a driver may take to begin with code. A signal that
	// comes meanwhile can be lost in bash, and end node.
	takeUp = 20 * time.Millisecond
	// repeatEvery is the time between two interrupts of the same code.
	repeatEvery = 100 * time.Millisecond
	// flushEvery is how long output of a running call waits to be sent.
	flushEvery = 50 * time.Millisecond
	// sampleEvery counts flushes between two samples: one second.
	sampleEvery = int(time.Second / flushEvery)
)

// large is the size of code, in bytes, whose memory is given back to the
// system at once.
const large = 256 << 10

// notStarted is the exit status of code whose interpreter could not start,
// as a shell gives it.
const notStarted = 127

// errLate reports a driver that is not up in time.
var errLate = errors.New("it takes too long")

// errUnkillable ends the agent, and with it the sandbox.
var errUnkillable = errors.New("the interpreter does not end after SIGKILL")

// executor runs calls.
type executor struct {
	*Server
	stdout, stderr *output.Stream
	root           workspace.Root

	// now is the running interpreter; nil where there is none, and always
	// for a command.
	now   *interpreter.Interpreter
	ready bool // now has loaded its driver
	spent bool // now has run a call without a session and ends
	used  bool // now has run code of a session
	// lost says that the state of earlier calls is gone and that no call
	// has been told yet.
	lost   bool
	limit  *frame.Limit // that was crossed and that no call has been told of yet
	number uint64       // calls so far
}

// run executes until ctx is done and then ends everything.
func (e *executor) run(ctx context.Context) error {
	defer e.end()
	// A configuration is often here already. Taking it first saves
	// starting the interpreter twice.
	first, ok := e.first()
	if ok && first.configure != nil {
		if err := e.configure(first.configure); err != nil {
			return err
		}
	}
	if e.spec.Sessions() {
		_ = e.start(nil)
	} else {
		e.up(nil)
	}
	if ok && first.call != nil {
		if err := e.do(ctx, first); err != nil {
			return err
		}
	}
	for {
		var replies <-chan interpreter.Reply
		var done <-chan struct{}
		var spent <-chan time.Time
		switch {
		case e.spent:
			spent = time.After(linger)
		case e.now != nil:
			replies, done = e.now.Replies(), e.now.Done()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-spent:
			if err := e.bury(); err != nil {
				return err
			}
		case t := <-e.queue:
			if err := e.do(ctx, t); err != nil {
				return err
			}
		case r, ok := <-replies:
			if err := e.idle(r, ok); err != nil {
				return err
			}
		case <-done:
			if err := e.idle(interpreter.Reply{}, false); err != nil {
				return err
			}
		}
	}
}

// first waits a moment for a request that came before the interpreter was
// started.
func (e *executor) first() (task, bool) {
	const moment = 2 * time.Millisecond
	select {
	case t := <-e.queue:
		return t, true
	case <-time.After(moment):
		return task{}, false
	}
}

func (e *executor) do(ctx context.Context, t task) error {
	if err := e.bury(); err != nil {
		return err
	}
	if t.configure != nil {
		return e.configure(t.configure)
	}
	if !e.take(t.call) {
		return nil
	}
	replies, err := e.execute(ctx, t.call)
	if err != nil {
		return err
	}
	if err := e.answer(t.call, replies); err != nil {
		return err
	}
	if size := len(t.call.Code); size > large {
		t.call.Code = ""
		debug.FreeOSMemory()
	}
	return nil
}

// configure applies a configuration. An interpreter that was started without
// its variables is started again: only so do those that are read at start-up
// (LANG, PYTHONPATH, NODE_OPTIONS) mean what they should.
func (e *executor) configure(req *frame.Request) error {
	if e.number > 0 {
		return e.out.Write(frame.Reply{Type: frame.Error, ID: req.ID, Message: "configure must come before the first execute"})
	}
	if req.Limits != nil && req.Limits.OutputBytes > 0 {
		e.stdout.SetLimit(req.Limits.OutputBytes)
		e.stderr.SetLimit(req.Limits.OutputBytes)
	}
	if len(req.Env) == 0 {
		return nil
	}
	env := e.spec.Env
	e.spec.Env = nil
	for _, pair := range env {
		name, _, _ := strings.Cut(pair, "=")
		if _, ok := req.Env[name]; !ok {
			e.spec.Env = append(e.spec.Env, pair)
		}
	}
	for name, value := range req.Env {
		e.spec.Env = append(e.spec.Env, name+"="+value)
	}
	if e.now == nil {
		return nil
	}
	if err := e.kill(); err != nil {
		return err
	}
	_ = e.start(nil)
	return nil
}

// start starts the interpreter; state is what an earlier one left, or nil.
// A failure is told to those who wait; the next call tries again.
func (e *executor) start(state *os.File) error {
	e.ready, e.used = false, state != nil
	e.down()
	var err error
	if e.now, err = interpreter.Start(e.table, &e.spec, state); err != nil {
		e.now = nil
		e.lost = e.lost || e.used
		e.logf("%v", err)
		e.up(err)
	}
	return err
}

// idle deals with what an interpreter does between two calls.
func (e *executor) idle(r interpreter.Reply, ok bool) error {
	if ok && r.Err == nil && r.Kind == driver.Ready && !e.ready {
		e.ready = true
		if r, ok = e.warm(); ok && r.Err == nil && r.Kind == driver.Done {
			e.up(nil)
			return nil
		}
	}
	err := r.Err
	if err == nil {
		err = errors.New("it ended between two calls")
	}
	if c := e.crossing(); c != nil {
		err = errors.New(c.String())
		if !e.used {
			return tooSmall(*c)
		}
	}
	e.logf("interpreter is lost: %v", err)
	again := e.ready
	e.lost = e.lost || e.used
	if err := e.kill(); err != nil {
		return err
	}
	if again {
		_ = e.start(nil)
	} else {
		e.up(fmt.Errorf("%s did not load: %w", e.spec.Command[0], err))
	}
	return nil
}

// warm goes the way of a call once, where nobody waits for a real one: what
// that loads, compiles and maps is then there. It returns the driver's answer.
func (e *executor) warm() (interpreter.Reply, bool) {
	done := interpreter.Reply{Reply: driver.Reply{Kind: driver.Done}}
	if !e.pinged() || e.number > 0 || e.used || len(e.queue) > 0 {
		return done, true
	}
	nonce, err := e.now.Run(e.spec.Driver.Warm, 0, false)
	if err != nil {
		return interpreter.Reply{Err: err}, true
	}
	timeout := time.NewTimer(loadTimeout)
	defer timeout.Stop()
	select {
	case r, ok := <-e.now.Replies():
		if r.Err == nil && r.Nonce != nonce {
			r.Err = errors.New("driver answered another call")
		}
		for _, s := range []*output.Stream{e.stdout, e.stderr} {
			s.Begin(nil)
			s.Drain()
			s.End()
		}
		e.root.Changed()
		return r, ok
	case <-e.now.Done():
		return interpreter.Reply{}, false
	case <-timeout.C:
		return interpreter.Reply{Err: errLate}, true
	}
}

// bury ends an interpreter that is spent.
func (e *executor) bury() error {
	if !e.spent {
		return nil
	}
	e.spent = false
	return e.kill()
}

// kill ends the interpreter and everything beside it, and forgets it.
func (e *executor) kill() error {
	if e.now == nil {
		return nil
	}
	if err := killed(e.now.Process); err != nil {
		return err
	}
	e.forget()
	return nil
}

// forget closes an interpreter that has ended.
func (e *executor) forget() {
	if state := e.now.Close(); state != nil {
		state.Close()
	}
	e.now = nil
}

// killed kills a process and waits for its end.
func killed(p *process.Process) error {
	p.Kill()
	select {
	case <-p.Done():
		return nil
	case <-time.After(endTimeout):
		return errUnkillable
	}
}

// end ends everything that runs in the sandbox.
func (e *executor) end() {
	if err := e.kill(); err != nil {
		e.logf("%v", err)
	}
	e.table.KillAll()
}

// load waits for the driver, at most until the end of the call's time. A
// driver that cannot load with the state of an earlier interpreter is started
// without.
func (e *executor) load(ctx context.Context, deadline time.Time) error {
	for {
		if e.now == nil {
			if err := e.start(nil); err != nil {
				return err
			}
		}
		if e.ready {
			return nil
		}
		var err error
		timeout := time.NewTimer(min(loadTimeout, time.Until(deadline)))
		select {
		case r, ok := <-e.now.Replies():
			if ok && r.Err == nil && r.Kind == driver.Ready {
				timeout.Stop()
				e.ready = true
				e.up(nil)
				return nil
			}
			if err = r.Err; err == nil {
				err = errors.New("its driver has ended")
			}
		case <-e.now.Done():
			err = fmt.Errorf("exit status %d", e.now.ExitCode())
		case <-timeout.C:
			err = errLate
		case <-ctx.Done():
			err = ctx.Err()
		}
		timeout.Stop()
		if c := e.crossing(); c != nil {
			err = errors.New(c.String())
			if !e.used {
				e.stop(tooSmall(*c))
				return err
			}
		}
		restored := e.used
		e.lost = e.lost || e.used
		if err := e.kill(); err != nil {
			return err
		}
		if restored && time.Now().Before(deadline) {
			continue
		}
		err = fmt.Errorf("%s did not load: %w", e.spec.Command[0], err)
		e.up(err)
		if restored {
			_ = e.start(nil)
		}
		return err
	}
}

// execute runs a call and returns what is left to send: the rest of its output
// and the result. Its error ends the agent.
func (e *executor) execute(ctx context.Context, c *call) ([]any, error) {
	e.number++
	result := frame.Reply{Type: frame.Result, ID: c.ID, Outcome: frame.OutcomeOK}
	streams := []*stream{{name: frame.Stdout, Stream: e.stdout}, {name: frame.Stderr, Stream: e.stderr}}
	for _, s := range streams {
		e.begin(c, s)
	}
	interpreter.Blocking(e.spec.Stdout)
	interpreter.Blocking(e.spec.Stderr)

	e.busy(true)
	end, err := e.code(ctx, c, streams)
	e.busy(false)
	if errors.Is(err, errUnkillable) {
		return nil, err
	}
	// Where the sandbox has to end, no result is right.
	if cause := context.Cause(ctx); cause != nil && cause != context.Canceled {
		return nil, cause
	}
	result.Limit, e.limit = e.limit, nil
	result.ExitCode = end.status
	if end.outcome != "" {
		result.Outcome = end.outcome
	}
	for _, s := range streams {
		s.Drain()
	}
	// What the agent has to say about a call stands in its stderr.
	if err != nil {
		fmt.Fprintf(e.spec.Stderr, "%s\n", err)
		e.stderr.Drain()
	}
	var replies []any
	for _, s := range streams {
		rest, truncated := s.finish(c)
		replies = append(replies, rest...)
		result.Truncated = append(result.Truncated, truncated...)
	}
	result.Files = e.root.Changed()
	if c.Keep {
		result.State = frame.StateKept
		if e.lost || e.now == nil {
			result.State = frame.StateLost
		}
		e.lost = false
	}
	return append(replies, result), nil
}

// ending is how code ended.
type ending struct {
	status  int
	outcome string // of the frame protocol; empty for ok
	exited  bool   // the process has ended
	left    bool   // it left its state behind
}

// code runs a call's code up to its end and leaves the executor ready for the
// next. Its error says why code did not run; except for errUnkillable it is
// for the caller of the code.
func (e *executor) code(ctx context.Context, c *call, streams []*stream) (ending, error) {
	deadline := time.Now().Add(forever)
	if c.TimeoutMS > 0 {
		deadline = time.Now().Add(time.Duration(c.TimeoutMS) * time.Millisecond)
	}
	if !e.spec.Sessions() {
		p, err := interpreter.RunCommand(e.table, &e.spec, c.Code)
		if err != nil {
			return ending{status: notStarted, outcome: frame.OutcomeCrashed}, err
		}
		return e.watch(ctx, c, deadline, p, nil, 0, streams)
	}
	last := !c.Keep
	var nonce uint64
	for again := true; ; again = false {
		err := e.load(ctx, deadline)
		if err == nil {
			nonce, err = e.now.Run(c.Code, e.number, last)
		}
		switch {
		case err == nil:
		case errors.Is(err, interpreter.ErrCode):
			return ending{status: 2}, err
		case errors.Is(err, errLate) && !time.Now().Before(deadline):
			return ending{status: notStarted, outcome: frame.OutcomeTimeout}, err
		case e.now == nil || !e.ready || !again:
			return ending{status: notStarted, outcome: frame.OutcomeCrashed}, err
		default:
			// The driver has closed its end a moment ago.
			e.logf("%v", err)
			e.lost = e.lost || e.used
			if err := e.kill(); err != nil {
				return ending{}, err
			}
			continue
		}
		break
	}
	e.used = e.used || c.Keep
	end, err := e.watch(ctx, c, deadline, e.now.Process, e.now.Replies(), nonce, streams)
	if err != nil {
		return end, err
	}
	if !end.exited {
		e.spent = last
		return end, nil
	}
	state := e.now.Close()
	e.now = nil
	if last {
		state.Close()
		return end, nil
	}
	if !end.left {
		state.Close()
		state = nil
		e.lost = true
		if end.outcome == "" {
			end.outcome = frame.OutcomeCrashed
		}
	}
	_ = e.start(state)
	return end, nil
}

// watch waits for the end of code: the driver's reply or the process's end.
// It interrupts the code at its timeout or when it is cancelled, and kills
// what has not ended when the grace has passed too. replies is nil where only
// the process's end counts.
func (e *executor) watch(ctx context.Context, c *call, deadline time.Time, p *process.Process, replies <-chan interpreter.Reply, nonce uint64, streams []*stream) (end ending, err error) {
	var held, grace <-chan time.Time
	taken := time.Now().Add(takeUp)
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	timeout := timer.C
	repeat := time.NewTicker(time.Hour)
	defer repeat.Stop()
	interrupt := func(outcome string) {
		end.outcome = outcome
		timeout = nil
		if e.now != nil {
			e.now.Interrupted()
		}
		p.Signal(unix.SIGINT)
		grace = time.After(time.Duration(c.GraceMS) * time.Millisecond)
		if e.spec.Driver != nil && e.spec.Driver.RepeatInterrupt {
			repeat.Reset(repeatEvery)
		}
	}
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	cancel := c.cancel
	for ticks := 1; ; {
		select {
		case r, ok := <-replies:
			switch {
			case !ok:
				// The other end is closed, or the line was the last
				// one: the process's end tells more.
				replies = nil
				continue
			case r.Err == nil && r.Kind == driver.Done && r.Nonce == nonce:
				end.status = r.Status
				return end, nil
			case r.Err == nil && r.Kind == driver.Leave && r.Nonce == nonce:
				end.left = true
				continue
			case r.Err == nil && r.Kind == driver.Stop && r.Nonce == nonce:
				e.now.Interrupted()
				p.SignalAlone(unix.SIGINT)
				continue
			case !c.Keep:
				// The code speaks, and the process's end is still to come.
				replies = nil
				continue
			case r.Err == nil:
				r.Err = errors.New("driver answered another call")
			}
			e.logf("interpreter cannot be used any more: %v", r.Err)
			if end.outcome == "" {
				end.outcome = frame.OutcomeCrashed
			}
			// What it said besides, the right answer too, comes from an
			// interpreter that is no more.
			replies, end.left = nil, false
			if err := killed(p); err != nil {
				return end, err
			}
		case <-p.Done():
			// A reply that was written before the end is still to come.
			if replies != nil {
				e.now.Finish()
				for r := range replies {
					end.left = end.left || r.Err == nil && r.Kind == driver.Leave && r.Nonce == nonce
				}
			}
			end.exited = true
			end.status = p.ExitCode()
			switch crossed := e.crossing(); {
			case crossed != nil && crossed.Limit == limitkeeper.Memory:
				end.outcome = frame.OutcomeMemory
			case crossed != nil:
				end.outcome = frame.OutcomeLimit
			case end.outcome == "" && p.Signalled():
				end.outcome = frame.OutcomeCrashed
			}
			if !c.Keep {
				for _, s := range streams {
					s.Drain()
				}
				// Nothing of a call without a session is left.
				e.table.KillAll()
			}
			return end, nil
		case <-timeout:
			interrupt(frame.OutcomeTimeout)
		case <-cancel:
			cancel = nil
			held = time.After(time.Until(taken))
		case <-held:
			held = nil
			if grace == nil {
				interrupt(frame.OutcomeCancelled)
			}
		case <-repeat.C:
			if grace != nil {
				p.Signal(unix.SIGINT)
			}
		case <-grace:
			grace = nil
			if err := killed(p); err != nil {
				return end, err
			}
		case <-ctx.Done():
			return end, killed(p)
		case <-flush.C:
			for _, s := range streams {
				if err := e.flush(c, s, ticks%sampleEvery == 0); err != nil {
					return end, err
				}
			}
			ticks++
		}
	}
}

// stream is a captured stream of one call.
type stream struct {
	*output.Stream
	name    string
	archive *workspace.Archive
}

// begin starts the capture of a call. A session's output beyond the limit is
// stored where the next call can search it.
func (e *executor) begin(c *call, s *stream) {
	if !c.Keep {
		s.Begin(nil)
		return
	}
	number := e.number
	s.Begin(func() io.Writer {
		archive, err := e.root.Archive(number, s.name)
		if err != nil {
			e.logf("%v", err)
			return nil
		}
		s.archive = archive
		return archive
	})
}

// flush sends what has come of the first half.
func (e *executor) flush(c *call, s *stream, sample bool) error {
	if text := s.Take(); text != "" {
		if err := e.out.Write(frame.Reply{Type: frame.Output, ID: c.ID, Stream: s.name, Data: text}); err != nil {
			return err
		}
	}
	if !sample {
		return nil
	}
	if line := s.Sample(); line != "" {
		return e.out.Write(frame.Reply{Type: frame.Output, ID: c.ID, Stream: s.name, Data: line, Sample: true})
	}
	return nil
}

// finish ends the capture of a call. It returns the rest of the stream's
// frames and what was left out.
func (s *stream) finish(c *call) (rest []any, truncated []frame.Truncation) {
	r := s.End()
	if s.archive != nil {
		s.archive.Close()
	}
	add := func(text string, skipped int64) {
		if text != "" || skipped > 0 {
			rest = append(rest, frame.Reply{Type: frame.Output, ID: c.ID, Stream: s.name, Data: text, Skipped: skipped})
		}
	}
	if r.Skipped == 0 {
		add(r.Head+r.Tail, 0)
		return rest, nil
	}
	add(r.Head, 0)
	add(r.Tail, r.Skipped)
	t := frame.Truncation{Stream: s.name, Total: r.Total}
	if s.archive != nil && s.archive.Stored > 0 {
		t.Path, t.Stored = s.archive.Path, s.archive.Stored
	}
	return rest, append(truncated, t)
}

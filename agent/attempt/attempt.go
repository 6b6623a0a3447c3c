// Package attempt runs one piece of code up to its end: in an interpreter that
// has loaded its driver, or as a command of its own.
//
// It promises that the code ends. If the code exceeds its time or is cancelled it is
// interrupted, and killed if it still runs when the grace period is over.
package attempt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

const (
	// forever is the time of code without a limit.
	forever = 10 * 365 * 24 * time.Hour
	// settleTime is how long a driver may take to begin with code. An earlier signal can
	// be lost in bash and can end node.
	settleTime = 20 * time.Millisecond
	// repeatInterval is the time between two interrupts of the same code.
	repeatInterval = 100 * time.Millisecond
	// flushInterval is the time between two calls of Flush.
	flushInterval = 50 * time.Millisecond
)

// FlushesPerSecond is how often Flush is called in a second.
const FlushesPerSecond = int(time.Second / flushInterval)

// ErrLate reports an interpreter that has not loaded its driver in time.
var ErrLate = errors.New("it takes too long")

// Deadline returns the deadline of code that starts now and may run for limit. 0 is no
// limit.
func Deadline(limit time.Duration) time.Time {
	if limit <= 0 {
		limit = forever
	}
	return time.Now().Add(limit)
}

// Load waits until the driver of an interpreter has answered that it is ready.
func Load(ctx context.Context, i *interpreter.Interpreter, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case r, ok := <-i.Replies():
		switch {
		case !ok:
			return errors.New("its driver has ended")
		case r.Err != nil:
			return r.Err
		case r.Kind != driver.Ready:
			return errors.New("its driver does not answer as it should")
		}
		return nil
	case <-i.Done():
		return fmt.Errorf("exit status %d", i.ExitCode())
	case <-timer.C:
		return ErrLate
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ending says how code ended.
type Ending struct {
	Status  int
	Outcome string // one of package frame's; empty if the code ended by itself
	Exited  bool   // the process has ended
	Left    bool   // the process left a session's state behind when it ended
	Broken  error  // why the driver's reply was wrong, if that ended the process
}

// Attempt is running code. Only Process is required.
type Attempt struct {
	// Process ends with the code, unless the driver answers before.
	Process *process.Process
	// Interpreter is nil for a command. Nonce is the number that the driver repeats in
	// its replies to this code.
	Interpreter *interpreter.Interpreter
	Nonce       uint64
	// Session says that the interpreter is to run further code. A wrong line on its
	// control channel then makes it unusable.
	Session bool
	// Repeat says that an interrupt is sent again while the code goes on.
	Repeat bool

	Deadline time.Time     // as Deadline returns it
	Grace    time.Duration // from the first signal to the kill
	// Cancel interrupts the code when it is closed.
	Cancel <-chan struct{}
	// Signals are passed on to the code as they are.
	Signals <-chan os.Signal
	// Flush is called while the code runs; its error ends the wait.
	Flush func() error

	end     Ending
	replies <-chan interpreter.Reply // nil when only the process's end counts
	stage   stage
	settled time.Time // when the driver has begun with the code
	killAt  time.Time // when the grace period is over
	alarm   *time.Timer
	soon    <-chan time.Time // when output may not wait any longer in the interpreter
}

// stage is the progress from running code to killed code. It determines the meaning of the
// alarm.
type stage int

const (
	running     stage = iota // the alarm is the deadline
	cancelled                // the alarm is the time at which an interrupt is safe
	interrupted              // the alarm is the next interrupt, or the end of the grace period
	killed                   // no alarm is set
)

// Wait waits for the end of the code: the driver's reply or the end of the process. The
// error is from Flush, or [process.ErrUnkillable]. If ctx is done first, the process is
// killed and there is no error. Wait is called once.
func (a *Attempt) Wait(ctx context.Context) (Ending, error) {
	if a.Interpreter != nil {
		a.replies = a.Interpreter.Replies()
	}
	if a.Deadline.IsZero() {
		a.Deadline = Deadline(0)
	}
	a.settled = time.Now().Add(settleTime)
	a.alarm = time.NewTimer(time.Until(a.Deadline))
	defer a.alarm.Stop()
	var flush <-chan time.Time
	if a.Flush != nil {
		ticker := time.NewTicker(flushInterval)
		defer ticker.Stop()
		flush = ticker.C
	}
	cancel := a.Cancel
	for {
		var err error
		select {
		case r, ok := <-a.replies:
			var over bool
			if over, err = a.reply(r, ok); over {
				return a.end, err
			}
		case <-a.Process.Done():
			a.exited()
			return a.end, nil
		case <-ctx.Done():
			return a.end, a.Process.End()
		case <-cancel:
			cancel = nil
			a.cancel()
		case sig := <-a.Signals:
			a.Process.Signal(sig.(unix.Signal))
			if a.stage < interrupted {
				a.startGrace()
			}
		case <-a.alarm.C:
			err = a.expire()
		case <-a.soon:
			a.soon = nil
			a.Process.SignalAlone(unix.SIGURG)
		case <-flush:
			err = a.Flush()
		}
		if err != nil {
			return a.end, err
		}
	}
}

// reply handles a reply of the driver. over says that it ended the code.
func (a *Attempt) reply(r interpreter.Reply, ok bool) (over bool, err error) {
	switch {
	case !ok:
		// There are no more replies. The end of the process has the status.
		a.replies = nil
		return false, nil
	case r.Err == nil && r.Kind == driver.Done && r.Nonce == a.Nonce:
		a.end.Status = r.Status
		return true, nil
	case r.Err == nil && r.Kind == driver.Leave && r.Nonce == a.Nonce:
		a.end.Left = true
		return false, nil
	case r.Err == nil && r.Kind == driver.Stop && r.Nonce == a.Nonce:
		a.Interpreter.Interrupted()
		a.Process.SignalAlone(unix.SIGINT)
		return false, nil
	case r.Err == nil && r.Kind == driver.Soon && r.Nonce == a.Nonce:
		if a.soon == nil {
			a.soon = time.After(driver.SoonTime)
		}
		return false, nil
	case !a.Session:
		// The code wrote this, and the end of the process is still to come.
		a.replies = nil
		return false, nil
	case r.Err == nil:
		r.Err = errors.New("driver answered another call")
	}
	if a.end.Outcome == "" {
		a.end.Outcome = frame.OutcomeCrashed
	}
	// Ignore everything else on this channel: the interpreter is about to be killed.
	a.replies, a.end.Left, a.end.Broken = nil, false, r.Err
	return false, a.Process.End()
}

// exited records the end of the process.
func (a *Attempt) exited() {
	// A reply may have been written before the end.
	if a.replies != nil {
		a.Interpreter.Finish()
		for r := range a.replies {
			if r.Err == nil && r.Kind == driver.Leave && r.Nonce == a.Nonce {
				a.end.Left = true
			}
		}
	}
	a.end.Exited, a.end.Status = true, a.Process.ExitCode()
	if a.end.Outcome == "" && a.Process.Signalled() {
		a.end.Outcome = frame.OutcomeCrashed
	}
}

// cancel interrupts the code as soon as its driver has begun with it.
func (a *Attempt) cancel() {
	if a.stage == running {
		a.stage = cancelled
		a.alarm.Reset(time.Until(a.settled))
	}
}

// expire handles the alarm.
func (a *Attempt) expire() error {
	switch a.stage {
	case running:
		a.interrupt(frame.OutcomeTimeout)
	case cancelled:
		a.interrupt(frame.OutcomeCancelled)
	case interrupted:
		if !time.Now().Before(a.killAt) {
			a.stage = killed
			return a.Process.End()
		}
		a.Process.Signal(unix.SIGINT)
		a.setAlarm()
	}
	return nil
}

// interrupt sends the first SIGINT.
func (a *Attempt) interrupt(outcome string) {
	a.end.Outcome = outcome
	if a.Interpreter != nil {
		a.Interpreter.Interrupted()
	}
	a.Process.Signal(unix.SIGINT)
	a.startGrace()
}

func (a *Attempt) startGrace() {
	a.stage, a.killAt = interrupted, time.Now().Add(a.Grace)
	a.setAlarm()
}

// setAlarm sets the alarm to the next interrupt or to the end of the grace
// period.
func (a *Attempt) setAlarm() {
	wait := time.Until(a.killAt)
	if a.Repeat {
		wait = min(wait, repeatInterval)
	}
	a.alarm.Reset(wait)
}

// Package agenttest runs an agent's server inside a test, with real
// interpreters, and speaks to it as the runtime does.
//
// The server reaps every child of the test's process: tests that use this
// package must not use os/exec.
package agenttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/server"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Table returns the one table of the test's process. A second one would reap
// what belongs to the first.
var Table = sync.OnceValue(process.NewTable)

// Agent is a server with an interpreter.
type Agent struct {
	Root string // its workspace

	t       testing.TB
	out     *frame.Writer
	close   func() error
	replies chan frame.Reply
	id      uint64
}

// Option changes how an agent is started.
type Option func(*interpreter.Spec)

// Command makes the interpreter a plain command, which reads its code from
// stdin with pipe set.
func Command(pipe bool, command ...string) Option {
	return func(s *interpreter.Spec) { s.Driver, s.Command, s.Pipe = nil, command, pipe }
}

// Words sets the interpreter's command line.
func Words(command ...string) Option {
	return func(s *interpreter.Spec) { s.Command = command }
}

// Env sets a variable of the interpreter.
func Env(name, value string) Option {
	return func(s *interpreter.Spec) { s.Env = append(s.Env, name+"="+value) }
}

// Root sets the workspace.
func Root(path string) Option {
	return func(s *interpreter.Spec) { s.Root = path }
}

// Start starts an agent for an interpreter of nix/interpreters, or for "command"
// and the option [Command], and ends it with the test.
func Start(t testing.TB, name string, options ...Option) *Agent {
	t.Helper()
	spec := interpreter.Spec{
		Root: t.TempDir(), Env: []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"},
	}
	if name != "command" {
		var folder string
		var err error
		folder, spec.Command = Driver(t, name)
		if spec.Driver, err = driver.Load(folder); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range options {
		o(&spec)
	}
	spec.Env = append(spec.Env, "HOME="+spec.Root, "TMPDIR="+spec.Root)
	in, requests, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r, pipe := io.Pipe()
	w := &wholeWriter{to: pipe}
	a := &Agent{
		Root: spec.Root, t: t, out: frame.NewWriter(requests), close: requests.Close,
		// What the agent sends is read at once, as the runtime does.
		replies: make(chan frame.Reply, 4096),
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer w.Close()
		if err := server.Serve(context.Background(), Table(), server.Config{
			Spec: spec, In: in, Out: w, Log: testLog{t},
		}); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	wg.Go(func() {
		defer close(a.replies)
		frames := frame.NewReader(r)
		for {
			var reply frame.Reply
			if err := frames.Read(&reply); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Errorf("read: %v", err)
				}
				return
			}
			a.replies <- reply
		}
	})
	t.Cleanup(func() {
		requests.Close()
		go func() {
			for range a.replies {
			}
		}()
		wg.Wait()
	})
	if got := a.Receive(); got.Type != frame.Ready {
		t.Fatalf("first reply %+v, want ready", got)
	}
	return a
}

// wholeWriter closes between two writes. An agent that ends leaves streams of visits behind, which
// end with its process; here they would be cut off within a frame.
type wholeWriter struct {
	mu sync.Mutex
	to *io.PipeWriter
}

func (w *wholeWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

func (w *wholeWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Close()
}

// testLog passes the agent's log on to the test's.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// Warm waits until the interpreter is loaded.
func (a *Agent) Warm() *Agent {
	a.t.Helper()
	a.Send(frame.Request{Type: frame.Ping, ID: 1 << 40})
	if got := a.Receive(); got.Type != frame.Pong {
		a.t.Fatalf("reply %+v, want pong", got)
	}
	return a
}

// Send sends a request.
func (a *Agent) Send(req frame.Request) {
	a.t.Helper()
	must.Do(a.t, a.out.Write(req))
}

// Receive returns the next reply.
func (a *Agent) Receive() frame.Reply {
	a.t.Helper()
	select {
	case r, ok := <-a.replies:
		if !ok {
			a.t.Fatal("the agent has ended")
		}
		return r
	case <-time.After(patience.Long):
		a.t.Fatalf("no reply in %v", patience.Long)
	}
	return frame.Reply{}
}

// Closed reports whether the agent has ended; it waits for that.
func (a *Agent) Closed() bool {
	deadline := time.After(patience.Long)
	for {
		select {
		case _, ok := <-a.replies:
			if !ok {
				return true
			}
		case <-deadline:
			return false
		}
	}
}

// HangUp ends the requests.
func (a *Agent) HangUp() { a.close() }

// Answer is what a call brought.
type Answer struct {
	Stdout, Stderr string
	Samples        int
	Skipped        int64
	frame.Reply
}

// Call starts a call in a session and returns its id.
func (a *Agent) Call(code string, change ...func(*frame.Request)) uint64 {
	a.t.Helper()
	a.id++
	req := frame.Request{
		Type: frame.Execute, ID: a.id, Code: code, Keep: true,
		TimeoutMS: patience.Long.Milliseconds(), GraceMS: Grace.Milliseconds(),
	}
	for _, f := range change {
		f(&req)
	}
	a.Send(req)
	return a.id
}

// Grace is the time of code that answers an interrupt. An interrupt that reaches an
// interpreter before its code begins may be lost, and the interpreter is ended after it.
const Grace = 10 * time.Second

// Limit is a change of a call: its timeout and grace.
func Limit(timeout, grace time.Duration) func(*frame.Request) {
	return func(r *frame.Request) { r.TimeoutMS, r.GraceMS = timeout.Milliseconds(), grace.Milliseconds() }
}

// Ephemeral is a change of a call: without a session.
func Ephemeral(r *frame.Request) { r.Keep = false }

// Wait returns the answer to a call, which must be the oldest that waits.
func (a *Agent) Wait(id uint64) Answer {
	a.t.Helper()
	var got Answer
	for {
		r := a.Receive()
		if r.ID != id {
			a.t.Fatalf("reply %+v, want one of call %d", r, id)
		}
		switch r.Type {
		case frame.Output:
			if r.Sample {
				got.Samples++
				continue
			}
			got.Skipped += r.Skipped
			if r.Stream == frame.Stdout {
				got.Stdout += r.Data
			} else {
				got.Stderr += r.Data
			}
		case frame.Result:
			got.Reply = r
			return got
		default:
			a.t.Fatalf("reply %+v, want output or result", r)
		}
	}
}

// Run runs code in a session and returns the answer.
func (a *Agent) Run(code string, change ...func(*frame.Request)) Answer {
	a.t.Helper()
	return a.Wait(a.Call(code, change...))
}

// Any stands for a stderr that may hold anything.
const Any = "*"

// Step is a call and what it must bring.
type Step struct {
	Code   string
	Stdout string // exactly
	Stderr string // a part of it; "" is nothing at all
	// Match is a regular expression that matches stderr, in place of Stderr;
	// its ^ and $ match at lines.
	Match string
	Exit  int
	Lost  bool
	// After is how long to wait before the call.
	After time.Duration
	// Outcome is ok unless given.
	Outcome string
	Change  func(*frame.Request)
}

// Steps runs calls one after the other in one session.
func (a *Agent) Steps(steps []Step) {
	a.t.Helper()
	must.Do(a.t, a.Try(steps))
}

// Try runs calls one after the other in one session, and returns an error for the first
// that brings something else than it must.
func (a *Agent) Try(steps []Step) error {
	a.t.Helper()
	for i, s := range steps {
		time.Sleep(s.After)
		var change []func(*frame.Request)
		if s.Change != nil {
			change = append(change, s.Change)
		}
		got := a.Run(s.Code, change...)
		if s.Outcome == "" {
			s.Outcome = frame.OutcomeOK
		}
		state := frame.StateKept
		if s.Lost {
			state = frame.StateLost
		}
		if s.Match != "" {
			s.Stderr = regexp.MustCompile("(?m)" + s.Match).FindString(got.Stderr)
		}
		if s.Stderr == Any {
			s.Stderr = got.Stderr
		}
		if got.Stdout != s.Stdout || got.ExitCode != s.Exit || got.Outcome != s.Outcome || got.State != state && got.State != "" ||
			!strings.Contains(got.Stderr, s.Stderr) || s.Stderr == "" && got.Stderr != "" {
			return fmt.Errorf("step %d: %s\ngot  stdout %q, stderr %q, exit %d, %s, state %s\nwant stdout %q, stderr %q, exit %d, %s, state %s",
				i+1, s.Code, got.Stdout, got.Stderr, got.ExitCode, got.Outcome, got.State,
				s.Stdout, cmp.Or(s.Match, s.Stderr), s.Exit, s.Outcome, state)
		}
	}
	return nil
}

// Longer calls try with longer and longer times for code that exceeds its own, until one
// returns no error: the code must have come as far as the test says before its time is
// over, and how long that takes is known to nobody. The last error ends the test.
func Longer(t testing.TB, try func(limit time.Duration) error) {
	t.Helper()
	var err error
	for limit := 500 * time.Millisecond; limit <= patience.Long; limit *= 5 {
		if err = try(limit); err == nil {
			return
		}
		t.Logf("with %v: %v", limit, err)
	}
	t.Fatal(err)
}

package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// fixture is a Manager over a machine of this process. Its time is a bubble's.
type fixture struct {
	*Manager
	t       *testing.T
	machine *sandboxtest.Machine
}

func specOf(c call.Call) sandbox.Spec { return sandbox.Spec{Name: c.Env.Name, OutputBytes: 1000} }

// inBubble runs a test with a Manager; limits that are zero are out of reach.
func inBubble(t *testing.T, limits Limits, test func(*testing.T, *fixture)) {
	t.Helper()
	if limits.Idle == 0 {
		limits.Idle = 1000 * time.Hour
	}
	if limits.Lifetime == 0 {
		limits.Lifetime = 1000 * time.Hour
	}
	if limits.Max == 0 {
		limits.Max = 64
	}
	synctest.Test(t, func(t *testing.T) {
		machine := &sandboxtest.Machine{StartTime: time.Second}
		f := &fixture{New(Options{Starter: machine, Spec: specOf, OneShot: OneShot(machine, specOf, nil), Limits: limits, Log: slog.New(slog.DiscardHandler)}), t, machine}
		test(t, f)
		f.Close()
		synctest.Wait()
		if live, _ := machine.Live(); len(live) > 0 {
			t.Errorf("%d sandboxes outlive the sessions", len(live))
		}
	})
}

// environment is one of the fixture's; all but the named are alike.
func environment(name string) registry.Environment {
	return registry.Environment{Name: name, Timeout: time.Minute, OutputBytes: 1000}
}

// do runs code with a ticket.
func (f *fixture) do(ctx context.Context, ticket *call.Ticket, code string) (call.Result, error) {
	defer ticket.Release()
	return f.Answer(ctx, call.Call{
		Principal: ticket.Key.Principal, Session: ticket.Key.ID, Ticket: ticket, Env: environment("one"), Code: code,
	})
}

// in runs code in a session and fails the test unless it writes want.
func (f *fixture) in(session, code, want string) call.Result {
	f.t.Helper()
	result, err := f.do(f.t.Context(), f.Enqueue(call.Key{ID: session}), code)
	if err != nil || result.Stdout.Head != want {
		f.t.Errorf("%s: answer %q, error %v, want %q", code, result.Stdout.Head, err, want)
	}
	return result
}

// A principal that begins many sessions has only its own forgotten.
func TestManager_RemembersTheEndedSessionsOfEach(t *testing.T) {
	m := New(Options{Log: slog.New(slog.DiscardHandler)})
	bob := call.Key{Principal: "bob", ID: "work"}
	m.Remember([]call.Key{bob})
	var many []call.Key
	for i := range 2 * maxEnded {
		many = append(many, call.Key{Principal: "alice", ID: fmt.Sprint(i)})
	}
	m.Remember(many)
	ended := m.Ended()
	if len(ended) != maxEnded || !slices.Contains(ended, bob) || !slices.Contains(ended, many[len(many)-1]) || slices.Contains(ended, many[0]) {
		t.Errorf("%d are remembered, bob's: %v", len(ended), slices.Contains(ended, bob))
	}
}

func TestSession_KeepsState(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.in("a", "x=1; echo $x", "1\n")
		f.in("b", "echo none$x", "none\n")
		if result := f.in("a", "echo $x", "1\n"); result.State != frame.StateKept || result.Restart != nil {
			t.Errorf("result %+v", result)
		}
		if f.machine.Started() != 2 {
			t.Errorf("%d sandboxes for two sessions", f.machine.Started())
		}
	})
}

// Sessions of one name of two principals are two sessions, also in what a
// refusal names.
func TestSession_BelongsToItsPrincipal(t *testing.T) {
	inBubble(t, Limits{Max: 2}, func(t *testing.T, f *fixture) {
		as := func(principal, session, code string) (string, error) {
			result, err := f.do(t.Context(), f.Enqueue(call.Key{Principal: principal, ID: session}), code)
			return result.Stdout.Head, err
		}
		as("alice", "s", "x=hers")
		if got, err := as("bob", "s", "echo none$x"); got != "none\n" {
			t.Errorf("bob reads %q, error %v", got, err)
		}
		if got, _ := as("alice", "s", "echo $x"); got != "hers\n" {
			t.Errorf("alice reads %q", got)
		}
		_, err := as("bob", "another", "echo")
		var full *call.FullError
		if !errors.As(err, &full) || len(full.Idle) != 1 || full.Idle[0].ID != "s" {
			t.Errorf("error %v: %+v", err, full)
		}
	})
}

func TestSession_HasOneEnvironment(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.in("a", "echo 1", "1\n")
		_, err := f.Answer(t.Context(), call.Call{Session: "a", Env: environment("two"), Code: "echo"})
		var other *call.OtherEnvError
		if !errors.As(err, &other) || *other != (call.OtherEnvError{Session: "a", Has: "one", Wanted: "two"}) {
			t.Errorf("error %v", err)
		}
		f.in("a", "echo 2", "2\n")
		if has := f.Environments(call.Key{ID: "a"}); len(has) != 1 || has[0].Name != "one" {
			t.Errorf("environments %+v", has)
		}
		if has := f.Environments(call.Key{ID: "b"}); len(has) > 0 {
			t.Errorf("session b has the environments %+v", has)
		}
	})
}

// sharing runs a test with a Manager whose sessions have several environments. It
// returns a function that runs code in session s.
func sharing(t *testing.T, limits Limits, test func(t *testing.T, f *fixture, in func(env, code string) (string, call.Result, error))) {
	t.Helper()
	inBubble(t, limits, func(t *testing.T, f *fixture) {
		f.Workspaces = f.machine
		test(t, f, func(env, code string) (string, call.Result, error) {
			t.Helper()
			result, err := f.Answer(t.Context(), call.Call{Session: "s", Env: environment(env), Code: code})
			return result.Stdout.Head, result, err
		})
		f.Close()
		synctest.Wait()
		if n := f.machine.Workspaces(); n > 0 {
			t.Errorf("%d workspaces outlive the sessions", n)
		}
	})
}

func TestSharedFiles_AreOfAllEnvironments(t *testing.T) {
	sharing(t, Limits{}, func(t *testing.T, f *fixture, in func(string, string) (string, call.Result, error)) {
		for _, step := range []struct{ env, code, want string }{
			{"one", "x=1; echo first >a", ""},
			{"two", "cat a; echo second >b; echo none$x", "first\nnone\n"},
			{"one", "cat b; echo $x", "second\n1\n"},
			{"three", "cat a; cat b", "first\nsecond\n"},
		} {
			if got, result, err := in(step.env, step.code); got != step.want || err != nil || result.Restart != nil {
				t.Errorf("%s: %s: %q, restart %v, error %v, want %q", step.env, step.code, got, result.Restart, err, step.want)
			}
		}
		ticket := f.Enqueue(call.Key{ID: "s"})
		box, err := f.Sandbox(t.Context(), ticket)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := sandbox.ReadFile(t.Context(), box, "/workspace/b", 100); string(data) != "second\n" {
			t.Errorf("read %q, error %v", data, err)
		}
		ticket.Release()
		// Another session has files of its own, and a call without one has no others'.
		for _, session := range []string{"other", ""} {
			result, err := f.Answer(t.Context(), call.Call{Session: session, Env: environment("one"), Code: "cat a; echo end"})
			if result.Stdout.Head != "end\n" {
				t.Errorf("session %q reads %q, error %v", session, result.Stdout.Head, err)
			}
		}
		time.Sleep(time.Second) // the end of the call without a session
		if live, _ := f.machine.Live(); len(live) != 4 || f.machine.Workspaces() != 2 {
			t.Errorf("%d sandboxes, %d workspaces", len(live), f.machine.Workspaces())
		}
	})
}

// An environment that cannot share files has sessions to itself, as all have without shared files.
func TestSharedFiles_NotOfAnEnvironmentAlone(t *testing.T) {
	sharing(t, Limits{}, func(t *testing.T, f *fixture, in func(string, string) (string, call.Result, error)) {
		f.machine.Alone = "alone"
		for range 2 {
			if _, _, err := in("alone", "echo first >a"); err != nil {
				t.Fatal(err)
			}
		}
		var other *call.OtherEnvError
		if _, _, err := in("one", "cat a"); !errors.As(err, &other) || other.Wanted != "one" {
			t.Errorf("error %v", err)
		}
	})
}

// A session goes on while one of its sandboxes lives, and with it the files.
func TestSharedFiles_OutliveASandbox(t *testing.T) {
	sharing(t, Limits{}, func(t *testing.T, f *fixture, in func(string, string) (string, call.Result, error)) {
		in("one", "x=1; echo kept >a")
		in("two", ":")
		var dead *sandbox.DeadError
		if _, result, err := in("one", "crash"); !errors.As(err, &dead) || call.Find[call.Survived](result.Notes) == nil {
			t.Errorf("result %+v, error %v", result, err)
		}
		got, result, err := in("one", "cat a; echo none$x")
		if got != "kept\nnone\n" || err != nil || result.Restart == nil || *result.Restart != (call.Restart{Cause: call.Died, FilesKept: true}) {
			t.Errorf("%q, restart %+v, error %v", got, result.Restart, err)
		}
		if _, result, _ := in("one", ":"); result.Restart != nil {
			t.Errorf("restart %+v is told twice", result.Restart)
		}
		// One that dies between two calls.
		live, _ := f.machine.Live()
		for _, s := range live {
			if s.Spec.Name == "two" {
				s.Kill()
			}
		}
		synctest.Wait()
		if got, result, _ := in("two", "cat a"); got != "kept\n" || result.Restart == nil || !result.Restart.FilesKept {
			t.Errorf("%q, restart %+v", got, result.Restart)
		}
		// When all have died, the session has ended, and so have its files.
		live, _ = f.machine.Live()
		for _, s := range live {
			s.Kill()
		}
		synctest.Wait()
		if n := f.machine.Workspaces(); n != 0 {
			t.Errorf("%d workspaces", n)
		}
		got, result, err = in("two", "cat a; echo end")
		if got != "end\n" || err != nil || result.Restart == nil || *result.Restart != (call.Restart{Cause: call.Died}) {
			t.Errorf("%q, restart %+v, error %v", got, result.Restart, err)
		}
	})
}

// The sandboxes of a session end together, and each of them counts.
func TestSharedFiles_EndWithTheSession(t *testing.T) {
	sharing(t, Limits{Idle: time.Minute, Lifetime: time.Hour, Max: 2}, func(t *testing.T, f *fixture, in func(string, string) (string, call.Result, error)) {
		in("one", "echo 1 >a")
		in("two", ":")
		_, _, err := in("three", ":")
		var full *call.FullError
		if !errors.As(err, &full) || full.Max != 2 {
			t.Errorf("error %v", err)
		}
		_, err = f.Answer(t.Context(), call.Call{Session: "other", Env: environment("one"), Code: ":"})
		if !errors.As(err, &full) || len(full.Idle) != 1 || full.Idle[0].Env != "one+two" {
			t.Errorf("error %v: %+v", err, full)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if live, _ := f.machine.Live(); len(live) != 0 || f.machine.Workspaces() != 0 {
			t.Errorf("%d sandboxes, %d workspaces after the idle time", len(live), f.machine.Workspaces())
		}
		got, result, err := in("two", "cat a; echo end")
		if got != "end\n" || err != nil || result.Restart == nil || result.Restart.Cause != call.Idle || result.Restart.FilesKept {
			t.Errorf("%q, restart %+v, error %v", got, result.Restart, err)
		}
	})
}

// A start that fails leaves no workspace of a session that did not begin, and does
// not end a session that goes on.
func TestSharedFiles_SurviveAFailedStart(t *testing.T) {
	sharing(t, Limits{}, func(t *testing.T, f *fixture, in func(string, string) (string, call.Result, error)) {
		f.machine.SetFailureRate(1)
		var start *call.StartError
		if _, _, err := in("one", ":"); !errors.As(err, &start) || start.Env != "one" {
			t.Errorf("error %v", err)
		}
		if n := f.machine.Workspaces(); n != 0 {
			t.Errorf("%d workspaces", n)
		}
		f.machine.SetFailureRate(0)
		in("one", "x=1; echo 1 >a")
		f.machine.SetFailureRate(1)
		if _, _, err := in("two", ":"); !errors.As(err, &start) || start.Env != "two" {
			t.Errorf("error %v", err)
		}
		f.machine.SetFailureRate(0)
		if got, _, err := in("one", "cat a; echo $x"); got != "1\n1\n" {
			t.Errorf("%q, error %v", got, err)
		}
		if got, _, err := in("two", "cat a"); got != "1\n" {
			t.Errorf("%q, error %v", got, err)
		}
		// The end of the server while a sandbox starts.
		done := make(chan error, 1)
		go func() {
			_, _, err := in("three", ":")
			done <- err
		}()
		time.Sleep(time.Second / 2) // the machine takes 1 s
		f.Close()
		if err := <-done; !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("error %v", err)
		}
	})
}

// Calls run in the order of their tickets, whatever order their goroutines
// run in.
func TestTickets_DecideTheOrder(t *testing.T) {
	random := seed.New(t)
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		var tickets []*call.Ticket
		for range 50 {
			tickets = append(tickets, f.Enqueue(call.Key{ID: "a"}))
		}
		var calls sync.WaitGroup
		for _, i := range random.Perm(len(tickets)) {
			calls.Go(func() {
				if _, err := f.do(t.Context(), tickets[i], fmt.Sprintf("sleep 0.1; order=$order.%d", i)); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		var want strings.Builder
		for i := range tickets {
			fmt.Fprintf(&want, ".%d", i)
		}
		f.in("a", "echo $order", want.String()+"\n")
	})
}

func TestSessions_RunBesideEachOther(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		began := time.Now()
		var calls sync.WaitGroup
		for i := range 8 {
			calls.Go(func() { f.in(fmt.Sprint(i), "sleep 10", "") })
		}
		calls.Wait()
		if took := time.Since(began); took != 11*time.Second { // one start and one call
			t.Errorf("8 calls of 10 s in 8 sessions took %v", took)
		}
	})
}

// A call that is cancelled while it waits never runs, and delays nobody.
func TestCancel_WhileWaiting(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		first, second, third := f.Enqueue(call.Key{ID: "a"}), f.Enqueue(call.Key{ID: "a"}), f.Enqueue(call.Key{ID: "a"})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := f.do(ctx, second, "ran=yes"); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		f.do(t.Context(), first, "x=1")
		if result, err := f.do(t.Context(), third, "echo $x$ran"); err != nil || result.Stdout.Head != "1\n" {
			t.Errorf("answer %+v, error %v", result, err)
		}
		// One whose turn has come does not run either.
		if _, err := f.do(ctx, f.Enqueue(call.Key{ID: "a"}), "ran=yes"); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		f.in("a", "echo none$ran", "none\n")
	})
}

func TestCancel_KeepsState(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.in("a", "x=kept", "")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		result, err := f.do(ctx, f.Enqueue(call.Key{ID: "a"}), "echo before; sleep 99; echo after")
		if err != nil || result.Outcome != frame.OutcomeCancelled || result.State != frame.StateKept || result.Stdout.Head != "before\n" {
			t.Errorf("answer %+v, error %v", result, err)
		}
		f.in("a", "echo $x", "kept\n")
	})
}

// restart fails the test unless a result says why its session is a new one.
func restart(t *testing.T, result call.Result, want call.Restart) {
	t.Helper()
	if result.Restart == nil || *result.Restart != want {
		t.Errorf("restart %+v, want %+v", result.Restart, want)
	}
}

func TestIdle_EndsASession(t *testing.T) {
	inBubble(t, Limits{Idle: time.Minute}, func(t *testing.T, f *fixture) {
		f.in("a", "x=1", "")
		time.Sleep(time.Minute - 1)
		f.in("a", "echo $x", "1\n") // a call puts the end off
		time.Sleep(time.Minute - 1)
		f.in("a", "sleep 30; sleep 29; echo $x", "1\n") // however long it takes
		time.Sleep(time.Minute)
		synctest.Wait()
		if live, _ := f.machine.Live(); len(live) > 0 {
			t.Error("the session lives on")
		}
		restart(t, f.in("a", "echo none$x", "none\n"), call.Restart{Cause: call.Idle, After: time.Minute})
		if result := f.in("a", "", ""); result.Restart != nil {
			t.Errorf("told again: %+v", result.Restart)
		}
	})
}

// A ticket alone keeps the session, and its release starts the idle time.
func TestIdle_BeginsWhenTheQueueIsEmpty(t *testing.T) {
	inBubble(t, Limits{Idle: time.Minute}, func(t *testing.T, f *fixture) {
		f.in("a", "x=1", "")
		time.Sleep(30 * time.Second)
		ticket := f.Enqueue(call.Key{ID: "a"})
		time.Sleep(time.Hour)
		ticket.Release()
		ticket.Release() // once is enough
		time.Sleep(time.Minute - 1)
		f.in("a", "echo $x", "1\n")
	})
}

func TestLifetime_EndsASession(t *testing.T) {
	inBubble(t, Limits{Lifetime: time.Hour}, func(t *testing.T, f *fixture) {
		f.in("a", "x=1", "")
		time.Sleep(time.Hour - time.Second) // a start took one
		synctest.Wait()
		if live, _ := f.machine.Live(); len(live) > 0 {
			t.Error("the session lives on")
		}
		restart(t, f.in("a", "echo none$x", "none\n"), call.Restart{Cause: call.Lifetime, After: time.Hour})
	})
}

// A call that runs at the end of the lifetime is finished; what waits behind
// it begins anew.
func TestLifetime_EndsAfterTheCall(t *testing.T) {
	inBubble(t, Limits{Lifetime: 10 * time.Second}, func(t *testing.T, f *fixture) {
		first, second := f.Enqueue(call.Key{ID: "a"}), f.Enqueue(call.Key{ID: "a"})
		if result, err := f.do(t.Context(), first, "x=1; sleep 15; echo $x"); err != nil || result.Stdout.Head != "1\n" {
			t.Errorf("answer %+v, error %v", result, err)
		}
		result, err := f.do(t.Context(), second, "echo none$x")
		if err != nil || result.Stdout.Head != "none\n" {
			t.Errorf("answer %+v, error %v", result, err)
		}
		restart(t, result, call.Restart{Cause: call.Lifetime, After: 10 * time.Second})
	})
}

func TestMax_IsAnError(t *testing.T) {
	inBubble(t, Limits{Max: 2}, func(t *testing.T, f *fixture) {
		f.in("one", "", "")
		time.Sleep(time.Second)
		f.in("two", "", "")
		third := func() *call.FullError {
			t.Helper()
			_, err := f.do(t.Context(), f.Enqueue(call.Key{ID: "three"}), "")
			var full *call.FullError
			if !errors.As(err, &full) {
				t.Fatalf("error %v", err)
			}
			return full
		}
		want := &call.FullError{Max: 2, Idle: []call.IdleSession{{ID: "one", Env: "one", Idle: 2 * time.Second}, {ID: "two", Env: "one"}}}
		if diff := cmp.Diff(want, third()); diff != "" {
			t.Error(diff)
		}
		busy := f.Enqueue(call.Key{ID: "one"})
		if full := third(); len(full.Idle) != 1 || full.Idle[0].ID != "two" {
			t.Errorf("with one that is busy: %+v", full)
		}
		busy.Release()
		if len(f.sessions) != 2 {
			t.Errorf("%d sessions are known", len(f.sessions))
		}
	})
}

// What fails to start does not count, and leaves no session.
func TestStart_Fails(t *testing.T) {
	inBubble(t, Limits{Max: 1}, func(t *testing.T, f *fixture) {
		f.machine.SetFailureRate(1)
		for _, session := range []string{"a", "", "b", ""} {
			_, err := f.Answer(t.Context(), call.Call{Session: session, Env: environment("one"), Code: "echo 1"})
			var start *call.StartError
			if !errors.As(err, &start) || start.Env != "one" || call.DiedDuring(err) != nil {
				t.Errorf("session %q: error %v", session, err)
			}
		}
		if len(f.sessions) != 0 || f.live != 0 {
			t.Errorf("%d sessions, %d live", len(f.sessions), f.live)
		}
		f.machine.SetFailureRate(0)
		f.in("a", "echo 1", "1\n")
	})
}

// The end of a call that waits for a start is the call's, and no failure of
// the environment.
func TestStart_Cancelled(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		for _, session := range []string{"a", ""} {
			if _, err := f.Answer(ctx, call.Call{Session: session, Env: environment("one")}); !errors.Is(err, context.DeadlineExceeded) || call.Outcome(call.Result{}, err) != "refused" {
				t.Errorf("session %q: error %v", session, err)
			}
		}
	})
}

// A sandbox that dies between two calls stops counting at once, and the next
// call is told.
func TestDeath_BetweenCalls(t *testing.T) {
	inBubble(t, Limits{Max: 1}, func(t *testing.T, f *fixture) {
		f.in("a", "x=1", "")
		live, _ := f.machine.Live()
		live[0].Kill()
		synctest.Wait()
		f.in("b", "echo 1", "1\n")
		live, _ = f.machine.Live()
		live[0].Kill()
		synctest.Wait()
		restart(t, f.in("a", "echo none$x", "none\n"), call.Restart{Cause: call.Died})
	})
}

func TestDeath_InACall(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.in("a", "x=1", "")
		first, second := f.Enqueue(call.Key{ID: "a"}), f.Enqueue(call.Key{ID: "a"})
		result, err := f.do(t.Context(), first, "echo before; crash; echo after")
		if dead := call.DiedDuring(err); dead == nil || result.Stdout.Head != "before\n" {
			t.Errorf("answer %+v, error %v", result, err)
		}
		result, err = f.do(t.Context(), second, "echo none$x")
		if err != nil || result.Stdout.Head != "none\n" {
			t.Errorf("answer %+v, error %v", result, err)
		}
		restart(t, result, call.Restart{Cause: call.Died})
	})
}

// However many sessions end, only so many are remembered.
func TestEnded_AreForgotten(t *testing.T) {
	inBubble(t, Limits{Idle: time.Second, Max: 2 * maxEnded}, func(t *testing.T, f *fixture) {
		f.machine.StartTime = 0
		for i := range maxEnded + 10 {
			f.in(fmt.Sprint(i), "", "")
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(f.ended) != maxEnded || len(f.order) != maxEnded {
			t.Errorf("%d and %d are remembered", len(f.ended), len(f.order))
		}
		if result := f.in("0", "", ""); result.Restart != nil {
			t.Errorf("the first is remembered: %+v", result.Restart)
		}
		if len(f.sessions) != 1 {
			t.Errorf("%d sessions are known", len(f.sessions))
		}
	})
}

// A sandbox of one call is ended soon after it, whatever came of it.
func TestOneShot_ThrowsTheSandboxAway(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		for _, code := range []string{"x=1; echo none$y", "sleep 99", "crash", "exit 3"} {
			_, err := f.Answer(t.Context(), call.Call{Env: environment("one"), Code: code})
			if code != "crash" && err != nil {
				t.Errorf("%s: %v", code, err)
			}
			time.Sleep(killDelay)
			synctest.Wait()
			if live, _ := f.machine.Live(); len(live) > 0 {
				t.Errorf("%s: its sandbox lives on", code)
			}
		}
	})
}

func TestSandbox_IsALiveSessions(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.in("a", "echo hello >f", "")
		read := func(session string, limit int64) (string, error) {
			ticket := f.Enqueue(call.Key{ID: session})
			defer ticket.Release()
			box, err := f.Sandbox(t.Context(), ticket)
			if err != nil {
				return "", err
			}
			data, err := sandbox.ReadFile(t.Context(), box, "/workspace/f", limit)
			return string(data), err
		}
		if got, err := read("a", 100); got != "hello\n" {
			t.Errorf("read %q, error %v", got, err)
		}
		var large *sandbox.TooLargeError
		if _, err := read("a", 2); !errors.As(err, &large) {
			t.Errorf("error %v", err)
		}
		var none *call.NoSessionError
		if _, err := read("b", 100); !errors.As(err, &none) || none.Session != "b" {
			t.Errorf("error %v", err)
		}
	})
}

// Whoever wants a session's sandbox waits for the calls before.
func TestSandbox_KeepsTheOrder(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		first, second := f.Enqueue(call.Key{ID: "a"}), f.Enqueue(call.Key{ID: "a"})
		defer second.Release()
		go f.do(t.Context(), first, "sleep 5; echo late >f")
		box := must.Get(f.Sandbox(t.Context(), second))(t)
		if data, err := sandbox.ReadFile(t.Context(), box, "/workspace/f", 100); string(data) != "late\n" {
			t.Errorf("read %q, error %v", data, err)
		}
	})
}

// A result is complete: the images that a call wrote are in it, as many and as
// large as the bounds allow.
func TestResult_HasItsImages(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		var code strings.Builder
		for i := range 6 {
			fmt.Fprintf(&code, "png outputs/%d.png\n", i)
		}
		code.WriteString("echo no image >outputs/text.png; echo notes >outputs/notes.txt")
		result := f.in("a", code.String(), "")
		read := 0
		for _, file := range result.Files {
			if file.Content != nil {
				read++
				if file.Type != "image/png" || !strings.HasSuffix(file.Path, ".png") || int64(len(file.Content)) != file.Size {
					t.Errorf("file %s of type %s, %d of %d bytes", file.Path, file.Type, len(file.Content), file.Size)
				}
			}
		}
		if read != maxImages || len(result.Files) != 8 {
			t.Errorf("%d images of %d files", read, len(result.Files))
		}
	})
}

// At the server's end every call is answered: the one that runs, the one that
// waits and the one that comes later.
func TestClose_AnswersEveryCall(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.in("a", "", "")
		running, waiting := f.Enqueue(call.Key{ID: "a"}), f.Enqueue(call.Key{ID: "a"})
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := f.do(t.Context(), running, "sleep 99"); call.DiedDuring(err) == nil {
				t.Errorf("running: error %v", err)
			}
		})
		calls.Go(func() {
			if _, err := f.do(t.Context(), waiting, ""); !errors.Is(err, sandbox.ErrClosed) {
				t.Errorf("waiting: error %v", err)
			}
		})
		// One whose sandbox is being started.
		calls.Go(func() {
			if _, err := f.do(t.Context(), f.Enqueue(call.Key{ID: "b"}), ""); !errors.Is(err, sandbox.ErrClosed) {
				t.Errorf("starting: error %v", err)
			}
		})
		synctest.Wait()
		f.Close()
		calls.Wait()
		if _, err := f.do(t.Context(), f.Enqueue(call.Key{ID: "c"}), ""); !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("later: error %v", err)
		}
		if len(f.sessions) != 0 || f.live != 0 {
			t.Errorf("%d sessions are left, %d live", len(f.sessions), f.live)
		}
	})
}

// If the machine is short of memory, the session that has been idle for longest ends, one at a time, and
// its next call is told. One that was used in the last minute, or runs a call, stays.
func TestKeepRoom_EndsTheLongestIdle(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		var short atomic.Bool
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go f.KeepRoom(ctx, short.Load)
		f.in("oldest", "x=1; echo $x", "1\n")
		time.Sleep(time.Second)
		f.in("older", "x=1; echo $x", "1\n")
		time.Sleep(leastIdle + roomEvery)
		f.in("fresh", "x=1; echo $x", "1\n")
		live := func(want int) {
			t.Helper()
			synctest.Wait()
			if got := len(f.List()); got != want {
				t.Errorf("%d sessions are live, want %d", got, want)
			}
		}
		live(3)
		short.Store(true)
		time.Sleep(roomEvery)
		live(2)
		time.Sleep(roomEvery)
		live(1)
		time.Sleep(roomEvery)
		live(1)
		short.Store(false)
		time.Sleep(2 * leastIdle)
		live(1)
		f.in("fresh", "echo $x", "1\n")
		restart(t, f.in("oldest", "echo none$x", "none\n"), call.Restart{Cause: call.NoMemory})
	})
}

// A sandbox that can get packages goes on in a larger environment; one that cannot is replaced.
func TestGrow_KeepsTheSandbox(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		with := func(added ...string) registry.Environment {
			env := environment("one")
			if env.Base, env.Added = "one", added; len(added) > 0 {
				env.Name = "one+" + strings.Join(added, "+")
			}
			return env
		}
		for i, step := range []struct {
			grows      bool
			env        registry.Environment
			code, want string
		}{
			{true, environment("one"), "x=1", ""},
			{true, with("a"), "echo $x", "1\n"},
			{true, environment("one"), "echo $x", "1\n"},
			{false, with("a", "b"), "echo none$x", "none\n"},
		} {
			f.machine.Grows = step.grows
			result, err := f.Answer(t.Context(), call.Call{Session: "s", Env: step.env, Code: step.code})
			if err != nil || result.Stdout.Head != step.want {
				t.Errorf("step %d: %q, %v", i, result.Stdout.Head, err)
			}
		}
	})
}

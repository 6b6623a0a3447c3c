package suspended_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/suspended"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

func environment(name string) registry.Environment {
	return registry.Environment{Name: name, Timeout: time.Minute, OutputBytes: 1000}
}

// sleeper is an environment whose sessions sleep and have branches; jail is one whose
// sessions do not.
func sleeper() registry.Environment {
	env := environment("vm")
	env.Suspend, env.Branch = true, true
	return env
}

func jail() registry.Environment { return environment("jail") }

// server is a Manager whose sessions sleep in a folder.
type server struct {
	*session.Manager
	t       *testing.T
	machine *sandboxtest.Machine
	store   *store.Store
	folder  string
	failure error // of starts, behind the part
}

// fragile is a part whose starts fail after those of the others, if its server says so.
type fragile struct{ server *server }

func (f fragile) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	begun, err := next(ctx, s)
	if err == nil && f.server.failure != nil {
		begun.End("")
		return nil, f.server.failure
	}
	return begun, err
}

// newServer returns one; a later one in the same folder has the sessions of an earlier.
func newServer(t *testing.T, folder string, limit int64) *server {
	machine := &sandboxtest.Machine{StartTime: time.Second}
	spec := func(c call.Call) sandbox.Spec {
		return sandbox.Spec{Name: c.Env.Name, OutputBytes: 1000, Control: c.Env.Suspend}
	}
	log := slog.New(slog.DiscardHandler)
	store := suspended.NewStore(folder, limit, log)
	all := &server{t: t, machine: machine, store: store, folder: folder}
	all.Manager = session.New(session.Options{
		Starter: machine, Spec: spec, OneShot: session.OneShot(machine, spec, nil), Limits: session.Limits{Idle: time.Minute, Lifetime: time.Hour, Max: 8},
		Parts: []session.Part{fragile{all}, suspended.NewPart(store, "", log)}, Log: log,
	})
	return all
}

// end ends a server as service does.
func (s *server) end() {
	s.Suspend()
	s.Close()
	synctest.Wait()
	if live, _ := s.machine.Live(); len(live) > 0 {
		s.t.Errorf("%d sandboxes outlive the server", len(live))
	}
}

func (s *server) call(env registry.Environment, session, from, code string) (call.Result, error) {
	return s.Answer(s.t.Context(), call.Call{Session: session, From: from, Env: env, Code: code})
}

// resumed returns the note that a session was suspended, or nil.
func resumed(result call.Result) *call.Resumed { return call.Find[call.Resumed](result.Notes) }

// in runs code in a session and fails the test unless it writes want.
func (s *server) in(session, code, want string) call.Result {
	s.t.Helper()
	result, err := s.call(sleeper(), session, "", code)
	if err != nil || result.Stdout.Head != want {
		s.t.Errorf("%s: answer %q, error %v, want %q", code, result.Stdout.Head, err, want)
	}
	return result
}

// asleep is how many sessions sleep in the folder, and how many folders there are.
func (s *server) asleep() (sessions, folders int) {
	s.t.Helper()
	list, err := suspended.List(s.folder)
	if err != nil {
		s.t.Fatal(err)
	}
	entries, _ := os.ReadDir(s.folder)
	for _, e := range entries {
		if e.IsDir() {
			folders++
		}
	}
	return len(list), folders
}

func (s *server) wantAsleep(sessions int) {
	s.t.Helper()
	if n, folders := s.asleep(); n != sessions || folders != sessions {
		s.t.Errorf("%d sessions sleep in %d folders, want %d", n, folders, sessions)
	}
}

func inBubbleOf(t *testing.T, limit int64, test func(t *testing.T, s *server)) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "sessions")
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, folder, limit)
		test(t, s)
		s.end()
	})
}

func TestSuspend_AnIdleSessionSleepsAndWakes(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1; echo 2 > f", "")
		s.wantAsleep(0)
		time.Sleep(2 * time.Minute)
		s.wantAsleep(1)
		if live, _ := s.machine.Live(); len(live) > 0 || len(s.List()) > 0 {
			t.Error("its sandbox lives on")
		}
		result := s.in("a", "echo $x; cat f", "1\n2\n")
		if resumed(result) == nil || resumed(result).Lost != "" || resumed(result).After < time.Minute-10*time.Second || result.Restart != nil {
			t.Errorf("it was woken so: %+v, %+v", resumed(result), result.Restart)
		}
		if result := s.in("a", "echo $x", "1\n"); resumed(result) != nil {
			t.Errorf("the next call woke it again: %+v", resumed(result))
		}
		synctest.Wait()
		s.wantAsleep(0)
	})
}

// A call that comes while a session falls asleep waits and wakes it.
func TestSuspend_ACallWhileItFallsAsleep(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		time.Sleep(time.Minute + 500*time.Millisecond)
		if result := s.in("a", "echo $x", "1\n"); resumed(result) == nil {
			t.Error("it did not sleep")
		}
	})
}

func TestSuspend_ALaterServerWakesIt(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		s.in("b", "x=2", "")
		if _, err := s.call(jail(), "c", "", "x=3"); err != nil {
			t.Error(err)
		}
		s.end()
		s.wantAsleep(2)
		time.Sleep(3 * time.Hour)
		later := newServer(t, s.folder, 1<<30)
		defer later.end()
		for session, want := range map[string]string{"a": "1\n", "b": "2\n"} {
			if result := later.in(session, "echo $x", want); resumed(result) == nil || resumed(result).After.Round(time.Hour) != 3*time.Hour {
				t.Errorf("%s was woken so: %+v", session, resumed(result))
			}
		}
		// A jail's session has ended, as ever.
		if result, err := later.call(jail(), "c", "", "echo none$x"); err != nil || result.Stdout.Head != "none\n" || resumed(result) != nil {
			t.Errorf("the jail's: %+v, %v", result, err)
		}
	})
}

// The sessions of two principals, and those of two environments, are not each other's.
func TestSuspend_WakesOnlyItsOwn(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		time.Sleep(2 * time.Minute)
		other := sleeper()
		other.Name = "other"
		for _, c := range []call.Call{{Principal: "p", Env: sleeper()}, {Env: other}} {
			c.Session, c.Code = "a", "echo none$x"
			if result, err := s.Answer(t.Context(), c); err != nil || resumed(result) != nil || result.Stdout.Head != "none\n" {
				t.Errorf("%+v has %+v, %v", c, result, err)
			}
		}
	})
}

// A call that runs when the server ends is interrupted, and its session sleeps with what
// it had done until then; calls that wait are refused.
func TestSuspend_ACallThatRunsIsInterrupted(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		ran, waited := make(chan call.Result, 1), make(chan error, 1)
		go func() {
			result, err := s.call(sleeper(), "a", "", "x=1; sleep 50; x=2")
			if err != nil {
				t.Error(err)
			}
			ran <- result
		}()
		time.Sleep(5 * time.Second)
		go func() {
			_, err := s.call(sleeper(), "a", "", "x=3")
			waited <- err
		}()
		synctest.Wait()
		s.end()
		if result := <-ran; result.Outcome != frame.OutcomeCancelled {
			t.Errorf("the call that ran has %+v", result)
		}
		if err := <-waited; !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("the call that waited has the error %v", err)
		}
		later := newServer(t, s.folder, 1<<30)
		defer later.end()
		later.in("a", "echo $x", "1\n")
	})
}

// A session that cannot be saved lives on and tries again; where the server ends, it ends.
func TestSuspend_LivesOnWhereItCannot(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		s.machine.SetSuspendFailure(errors.New("no space left on device"))
		time.Sleep(5 * time.Minute)
		if n, _ := s.asleep(); n != 0 {
			t.Error("it sleeps")
		}
		if result := s.in("a", "echo $x", "1\n"); resumed(result) != nil || result.Restart != nil {
			t.Errorf("it did not live on: %+v", result)
		}
		s.machine.SetSuspendFailure(nil)
		time.Sleep(2 * time.Minute)
		s.wantAsleep(1)
		if result := s.in("a", "echo $x", "1\n"); resumed(result) == nil {
			t.Error("it did not sleep in the end")
		}
	})
}

// What a session slept in is there until the call that woke it has been answered, and a
// server that could not save it again leaves it.
func TestSuspend_TheOldStateStaysUntilTheAnswer(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		time.Sleep(2 * time.Minute)
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			_, _ = s.call(sleeper(), "a", "", "x=2; sleep 50")
		}()
		time.Sleep(10 * time.Second)
		s.wantAsleep(1)
		s.machine.SetSuspendFailure(errors.New("no space left on device"))
		s.end()
		<-answered
		later := newServer(t, s.folder, 1<<30)
		defer later.end()
		later.in("a", "echo $x", "1\n")
	})
}

// The old state of a session that has answered since, and that could not be saved again, is gone: the
// session must not go on silently from before the answer.
func TestSuspend_TheOldStateGoesWithTheAnswer(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		time.Sleep(2 * time.Minute)
		s.machine.SetSuspendFailure(errors.New("no space left on device"))
		s.in("a", "x=2; echo $x", "2\n")
		s.end()
		later := newServer(t, s.folder, 1<<30)
		defer later.end()
		later.in("a", "echo none$x", "none\n")
	})
}

// A session that woke and crashed in its first call does not go on from before that.
func TestSuspend_TheOldStateGoesWithACrash(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		time.Sleep(2 * time.Minute)
		s.wantAsleep(1)
		if result, err := s.call(sleeper(), "a", "", "crash"); err == nil && result.Outcome == frame.OutcomeOK {
			t.Errorf("a crash is %+v", result)
		}
		s.in("a", "echo none$x", "none\n")
		synctest.Wait()
		s.wantAsleep(0)
	})
}

// What was woken for a start that failed is not woken again.
func TestSuspend_TheOldStateGoesWithAFailedStart(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		time.Sleep(2 * time.Minute)
		s.failure = errors.New("no")
		if _, err := s.call(sleeper(), "a", "", "echo $x"); err == nil {
			t.Error("it started")
		}
		synctest.Wait()
		s.wantAsleep(0)
		s.failure = nil
		s.in("a", "echo none$x", "none\n")
	})
}

// A state that cannot go on costs its session, whose next call says so and begins anew.
func TestSuspend_BeginsAnewWhereItCannotGoOn(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		time.Sleep(2 * time.Minute)
		files, _ := filepath.Glob(filepath.Join(s.folder, "*", "data-*", "state"))
		if len(files) != 1 || os.WriteFile(files[0], []byte("{"), 0o600) != nil {
			t.Fatalf("the states are %q", files)
		}
		result := s.in("a", "echo none$x", "none\n")
		if resumed(result) == nil || resumed(result).Lost == "" {
			t.Errorf("the answer says %+v", resumed(result))
		}
		s.in("a", "x=2", "")
		time.Sleep(2 * time.Minute)
		s.wantAsleep(1)
		s.in("a", "echo $x", "2\n")
	})
}

// Too large a session does not sleep, and ends as a jail's does.
func TestSuspend_EndsWhatIsTooLarge(t *testing.T) {
	inBubbleOf(t, 1<<20, func(t *testing.T, s *server) {
		env := sleeper()
		env.MemoryMB = 2
		if _, err := s.call(env, "a", "", "x=1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		s.wantAsleep(0)
		result, err := s.call(env, "a", "", "echo none$x")
		if err != nil || result.Restart == nil || result.Restart.Cause != call.Idle {
			t.Errorf("%+v, %v", result.Restart, err)
		}
	})
}

func TestBranch_IsACopy(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1; echo 1 > f", "")
		result, err := s.call(sleeper(), "b", "a", "echo $x; cat f; x=2")
		if err != nil || result.Stdout.Head != "1\n1\n" || len(result.Notes) != 1 || result.Notes[0] != (call.Branched{From: "a"}) {
			t.Errorf("%+v, %v", result, err)
		}
		s.in("a", "echo $x; x=3", "1\n")
		s.in("b", "echo $x", "2\n")
		// A branch of a branch, and of a session that sleeps.
		if result, err := s.call(sleeper(), "c", "b", "echo $x"); err != nil || result.Stdout.Head != "2\n" {
			t.Errorf("%+v, %v", result, err)
		}
		s.wantAsleep(0)
		time.Sleep(2 * time.Minute)
		s.wantAsleep(3)
		if result, err := s.call(sleeper(), "d", "a", "echo $x"); err != nil || result.Stdout.Head != "3\n" {
			t.Errorf("%+v, %v", result, err)
		}
		s.in("a", "echo $x", "3\n")
	})
}

func TestBranch_IsRefused(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		s.in("asleep", "x=1", "")
		time.Sleep(2 * time.Minute)
		s.in("a", "x=1", "")
		s.in("other", "x=2", "")
		if _, err := s.call(jail(), "jailed", "", "x=1"); err != nil {
			t.Fatal(err)
		}
		busy := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(busy)
			_, _ = s.Answer(ctx, call.Call{Session: "busy", Env: sleeper(), Code: "sleep 50"})
		}()
		time.Sleep(5 * time.Second)
		for _, test := range []struct {
			session, from string
			env           registry.Environment
			want          call.BranchRefusal
		}{
			{"b", "busy", sleeper(), call.Busy},
			{"b", "nobody", sleeper(), call.Unknown},
			{"b", "jailed", jail(), call.Branchless},
			{"other", "a", sleeper(), call.Existing},
			{"asleep", "a", sleeper(), call.Existing},
			{"a", "a", sleeper(), call.Existing},
		} {
			var refused *call.BranchError
			if _, err := s.call(test.env, test.session, test.from, "x=9"); !errors.As(err, &refused) || refused.Reason != test.want {
				t.Errorf("%s from %s: error %v, want %s", test.session, test.from, err, test.want)
			}
		}
		var other *call.OtherEnvError
		if _, err := s.call(sleeper(), "b", "jailed", "x=9"); !errors.As(err, &other) {
			t.Errorf("from another environment: error %v", err)
		}
		s.machine.SetSuspendFailure(errors.New("no space left on device"))
		var refused *call.BranchError
		if _, err := s.call(sleeper(), "b", "a", "x=9"); !errors.As(err, &refused) || refused.Reason != call.NoCopy {
			t.Errorf("where no copy can be written: error %v", err)
		}
		s.machine.SetSuspendFailure(nil)
		cancel()
		<-busy
		s.in("a", "echo $x", "1\n")
		s.in("other", "echo $x", "2\n")
		synctest.Wait()
		s.wantAsleep(1)
	})
}

// Where no further session may begin, those fall asleep that have been idle for longest.
func TestSuspend_MakesSpace(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		if _, err := s.call(jail(), "jailed", "", "x=0"); err != nil {
			t.Fatal(err)
		}
		for n := range 7 {
			s.in(string(rune('a'+n)), "x=1", "")
		}
		s.in("a", "x=2", "") // b has been idle for longest among those that can sleep
		s.in("i", "x=3", "")
		s.wantAsleep(1)
		var alive []string
		for _, one := range s.List() {
			alive = append(alive, one.Key.ID)
		}
		if want := []string{"a", "c", "d", "e", "f", "g", "i", "jailed"}; !slices.Equal(alive, want) {
			t.Errorf("%q live, want %q", alive, want)
		}
		if result := s.in("b", "echo $x", "1\n"); resumed(result) == nil {
			t.Error("b did not sleep")
		}
		time.Sleep(time.Second) // what it slept in is deleted after the answer
		s.wantAsleep(1)

		// One that cannot sleep goes on, and the call hears which sessions there are.
		s.machine.SetSuspendFailure(errors.New("no space left on device"))
		var full *call.FullError
		if _, err := s.call(sleeper(), "j", "", "x=4"); !errors.As(err, &full) || full.Max != 8 || len(full.Idle) != 8 {
			t.Errorf("error %v", err)
		}
		s.machine.SetSuspendFailure(nil)
		s.in("a", "echo $x", "2\n")
	})
}

// A session waits for those that fall asleep already, and needs none beside them.
func TestSuspend_AwaitsThoseThatFallAsleep(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		var begun sync.WaitGroup
		for n := range 8 {
			begun.Go(func() { s.in(string(rune('a'+n)), "x=1", "") })
		}
		begun.Wait()
		time.Sleep(time.Minute + 500*time.Millisecond)
		if n, _ := s.asleep(); n != 0 {
			t.Errorf("%d sleep already", n)
		}
		s.in("i", "x=2", "")
		time.Sleep(2 * time.Second)
		s.wantAsleep(8)
	})
}

// A session that falls asleep runs no call: a branch of it begins when it sleeps.
func TestBranch_OfOneThatFallsAsleep(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		time.Sleep(time.Minute + 500*time.Millisecond)
		if result, err := s.call(sleeper(), "b", "a", "echo $x"); err != nil || result.Stdout.Head != "1\n" {
			t.Errorf("%+v, %v", result, err)
		}
		s.in("a", "echo $x", "1\n")
	})
}

// A session whose call has been answered runs none, although what it slept in is not
// deleted yet.
func TestBranch_OfOneThatWoke(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.in("a", "x=1", "")
		time.Sleep(2 * time.Minute)
		s.in("a", "x=2", "")
		if result, err := s.call(sleeper(), "b", "a", "echo $x"); err != nil || result.Stdout.Head != "2\n" {
			t.Errorf("%+v, %v", result, err)
		}
		time.Sleep(time.Second)
		s.wantAsleep(0)
	})
}

// So it can fall asleep for another one.
func TestSuspend_MakesSpaceOfOneThatWoke(t *testing.T) {
	inBubbleOf(t, 1<<30, func(t *testing.T, s *server) {
		s.Limits.Max = 1
		s.in("a", "x=1", "")
		s.in("b", "x=2", "")
		s.in("a", "echo $x", "1\n")
		s.in("b", "echo $x", "2\n")
		time.Sleep(time.Second)
		s.wantAsleep(1)
	})
}

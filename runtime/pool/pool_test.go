package pool

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

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// fixture is a pool in front of a machine of this process. Its time is a
// bubble's.
type fixture struct {
	*Pool
	t       *testing.T
	machine *sandboxtest.Machine
}

// inBubble runs a test with a pool that starts two sandboxes at a time.
func inBubble(t *testing.T, machine *sandboxtest.Machine, test func(*testing.T, *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{New(machine, slog.New(slog.DiscardHandler)), t, machine}
		f.parallel, f.budget = 2, 1<<40
		test(t, f)
		f.Close(time.Hour)
		synctest.Wait()
		machine.Close(0)
		if f.used != 0 || f.starting != 0 || len(f.shelves) != 0 {
			t.Errorf("after its end the pool counts %d bytes, %d starts, %d shelves", f.used, f.starting, len(f.shelves))
		}
	})
}

// seconds is a machine whose starts take one.
func seconds() *sandboxtest.Machine {
	return &sandboxtest.Machine{StartTime: time.Second, Memory: 1 << 20}
}

func spec(name string) sandbox.Spec { return sandbox.Spec{Name: name} }

// keep says that count sandboxes of each name are to be ready.
func (f *fixture) keep(count int, names ...string) {
	var kinds []Kind
	for _, name := range names {
		kinds = append(kinds, Kind{spec(name), count})
	}
	f.Keep(kinds)
}

// ready waits until nothing is starting, and returns how many are ready.
func (f *fixture) ready(name string) int {
	time.Sleep(time.Minute / 10) // less than any burst or retry that a test is about
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.shelves[name]; s != nil {
		return len(s.ready)
	}
	return 0
}

// start starts a sandbox, and says how long that took.
func (f *fixture) start(name string) (sandbox.Sandbox, time.Duration) {
	f.t.Helper()
	began := time.Now()
	box := must.Get(f.Start(f.t.Context(), spec(name)))(f.t)
	return box, time.Since(began)
}

func TestFill_BeginsWhenItIsAskedTo(t *testing.T) {
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		f.keep(2, "a")
		if n := f.ready("a"); n != 0 || f.machine.Started() != 0 {
			t.Errorf("%d are ready before Fill", n)
		}
		f.Fill()
		if n := f.ready("a"); n != 2 || f.machine.Started() != 2 {
			t.Errorf("%d are ready, %d were started, want 2", n, f.machine.Started())
		}
		live, _ := f.machine.Live()
		for _, box := range live {
			if !box.Spec.Warm {
				t.Error("it was not started warm")
			}
		}
	})
}

// What waits is what a call gets, once and at once, and another one is
// started when the call has had its head start.
func TestStart_TakesWhatIsReady(t *testing.T) {
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		f.keep(1, "a")
		f.Fill()
		seen := map[sandbox.Sandbox]bool{}
		for i := range 3 {
			if n := f.ready("a"); n != 1 {
				t.Fatalf("%d are ready", n)
			}
			box, took := f.start("a")
			if took != 0 || seen[box] {
				t.Errorf("start %d took %v; a second time: %v", i, took, seen[box])
			}
			seen[box] = true
			synctest.Wait()
			if n := f.machine.Started(); n != i+1 {
				t.Errorf("%d were started at once after start %d", n, i)
			}
		}
	})
}

// A call has a head start that grows with the time of a start, up to a bound. One that
// leaves less to another shelf's call does not delay that one's.
func TestStart_GivesACallAHeadStart(t *testing.T) {
	began := func(f *fixture, within time.Duration) bool {
		time.Sleep(within)
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.starting > 0
	}
	for start, want := range map[time.Duration]time.Duration{
		20 * time.Millisecond:  fillDelay,
		480 * time.Millisecond: 30 * time.Millisecond,
		time.Minute:            maxFillDelay,
	} {
		machine := &sandboxtest.Machine{StartTime: start, Memory: 1 << 20}
		inBubble(t, machine, func(t *testing.T, f *fixture) {
			f.keep(1, "a", "b")
			f.Fill()
			for f.ready("a") == 0 || f.ready("b") == 0 {
			}
			f.start("a")
			if began(f, want-1) {
				t.Errorf("a start that takes %v is repeated sooner than %v after a call", start, want)
			}
			if !began(f, 1) {
				t.Errorf("a start that takes %v is not repeated %v after a call", start, want)
			}
			for f.ready("a") == 0 {
			}
			f.start("a")
			f.mu.Lock()
			f.shelves["b"].took = 0
			f.mu.Unlock()
			f.start("b")
			if !began(f, fillDelay) {
				t.Errorf("a call of one shelf waits for the head start of another shelf's, of %v", want)
			}
		})
	}
}

// What is handed out is made its principal's first. Where that fails, it is ended, and
// another one is started for the principal.
func TestStart_GivesToThePrincipal(t *testing.T) {
	machine := seconds()
	var given []string
	failure := error(nil)
	machine.Give = func(principal string) error {
		given = append(given, principal)
		return failure
	}
	inBubble(t, machine, func(t *testing.T, f *fixture) {
		f.keep(1, "a")
		f.Fill()
		start := func(principal string) *sandboxtest.Sandbox {
			f.ready("a")
			of := spec("a")
			of.Principal = principal
			return must.Get(f.Start(t.Context(), of))(t).(*sandboxtest.Sandbox)
		}
		if box := start("alice"); box.Spec.Principal != "" {
			t.Errorf("alice has one that was started for %q", box.Spec.Principal)
		}
		failure = errors.New("no group")
		if box := start("bob"); box.Spec.Principal != "bob" {
			t.Error("bob has one that could not be given")
		}
		if want := []string{"alice", "bob"}; !slices.Equal(given, want) {
			t.Errorf("given to %q, want %q", given, want)
		}
		synctest.Wait()
		if live, _ := machine.Live(); len(live) != 2 {
			t.Errorf("%d sandboxes live, want those of alice and bob", len(live))
		}
	})
}

// A call that finds none ready gets the one that is on its way.
func TestStart_TakesWhatIsOnItsWay(t *testing.T) {
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		f.keep(1, "a")
		f.Fill()
		time.Sleep(time.Second / 2)
		if _, took := f.start("a"); took != time.Second/2 {
			t.Errorf("it took %v", took)
		}
	})
}

// A sandbox that waits becomes one of a larger environment, unless it cannot.
func TestStart_GrowsWhatIsReady(t *testing.T) {
	for _, grows := range []bool{true, false} {
		machine := seconds()
		machine.Grows = grows
		inBubble(t, machine, func(t *testing.T, f *fixture) {
			f.keep(1, "a")
			f.Fill()
			f.ready("a")
			larger := sandbox.Spec{Name: "a+b", Exec: "/larger", Base: "a"}
			began := time.Now()
			box := must.Get(f.Start(t.Context(), larger))(t).(*sandboxtest.Sandbox)
			if took := time.Since(began); grows != (took == 0) || grows != (box.Spec.Name == "a") {
				t.Errorf("grows %v: %q after %v", grows, box.Spec.Name, took)
			}
			// The controls: another environment's, and one with other limits.
			f.ready("a")
			for _, other := range []sandbox.Spec{{Name: "c+b", Base: "c"}, {Name: "a+b", Base: "a", Limits: sandbox.Limits{Memory: 1}}} {
				if box := must.Get(f.Start(t.Context(), other))(t).(*sandboxtest.Sandbox); box.Spec.Name != other.Name {
					t.Errorf("%+v got one of %q", other, box.Spec.Name)
				}
			}
		})
	}
}

// Nobody is given a sandbox of another kind, or waits for one of a pool that
// keeps none.
func TestStart_WithoutAShelf(t *testing.T) {
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		f.keep(1, "a")
		f.keep(0, "none")
		f.Fill()
		f.ready("a")
		for _, name := range []string{"none", "other"} {
			if _, took := f.start(name); took != time.Second {
				t.Errorf("%s: it took %v", name, took)
			}
		}
		changed := spec("a")
		changed.OutputBytes = 5
		box, err := f.Start(t.Context(), changed)
		if err != nil || box.(*sandboxtest.Sandbox).Spec.OutputBytes != 5 {
			t.Errorf("sandbox %+v, error %v", box, err)
		}
	})
}

// A sandbox that ends while it waits is not handed out, and replaced.
func TestReady_DiesAndIsReplaced(t *testing.T) {
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		f.keep(1, "a")
		f.Fill()
		f.ready("a")
		kill := func() *sandboxtest.Sandbox {
			live, _ := f.machine.Live()
			live[0].Kill()
			return live[0]
		}
		dead := kill()
		if box, _ := f.start("a"); box == dead || !box.(sandbox.Pooled).Idle() {
			t.Error("a dead sandbox was handed out")
		} else {
			box.Kill()
		}
		f.ready("a")
		kill()
		synctest.Wait()
		if n := f.ready("a"); n < 1 {
			t.Error("it was not replaced")
		}
	})
}

// A burst makes the pool keep more, and gives that back when it is over.
func TestBurst_KeepsMoreForAWhile(t *testing.T) {
	inBubble(t, &sandboxtest.Machine{StartTime: time.Second / 10, Memory: 1 << 20}, func(t *testing.T, f *fixture) {
		f.keep(1, "a")
		f.Fill()
		f.ready("a")
		for range 3 {
			for range 8 {
				box, _ := f.start("a")
				box.Kill()
			}
		}
		f.mu.Lock()
		want := f.shelves["a"].want
		f.mu.Unlock()
		if want <= 1 || want > maxBurst {
			t.Fatalf("a burst makes the pool want %d", want)
		}
		if n := f.ready("a"); n != want {
			t.Errorf("%d are ready, %d wanted", n, want)
		}
		time.Sleep(burstEnd)
		if n := f.ready("a"); n != 1 {
			t.Errorf("%d are ready after the burst", n)
		}
	})
}

// What a kind was before, or is no more, is not handed out.
func TestKeep_ReplacesWhatChanged(t *testing.T) {
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		f.keep(1, "a", "b")
		f.Fill()
		f.ready("a")
		changed := Kind{spec("a"), 1}
		changed.Spec.Limits.Tasks = 7
		f.Keep([]Kind{changed})
		f.ready("a")
		live, _ := f.machine.Live()
		if len(live) != 1 || live[0].Spec.Name != "a" || live[0].Spec.Limits.Tasks != 7 {
			t.Errorf("%d live: %+v", len(live), live[0].Spec)
		}
		f.Keep([]Kind{changed}) // the same again
		if n := f.machine.Started(); n != 3 {
			t.Errorf("%d starts, want 3", n)
		}
	})
}

// A start that is under way when its kind changes is thrown away.
func TestKeep_DuringAStart(t *testing.T) {
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		f.keep(1, "a")
		f.Fill()
		time.Sleep(time.Second / 2)
		f.Keep(nil)
		f.ready("a")
		if live, _ := f.machine.Live(); len(live) > 0 || f.used != 0 {
			t.Errorf("%d live, %d bytes are counted", len(live), f.used)
		}
	})
}

// A project that was moved away is not shown to a later call; one whose files
// changed is.
func TestProject_ThatWasReplaced(t *testing.T) {
	project := filepath.Join(t.TempDir(), "project")
	must.Do(t, os.Mkdir(project, 0o755))
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		s := spec("a")
		s.Host.Project.Dir = project
		f.Keep([]Kind{{s, 1}})
		f.Fill()
		for _, step := range []struct {
			change func() error
			kept   bool
		}{
			{func() error { return os.WriteFile(filepath.Join(project, "file"), nil, 0o644) }, true},
			{func() error { return errors.Join(os.Rename(project, project+".old"), os.Mkdir(project, 0o755)) }, false},
		} {
			f.ready("a")
			live, _ := f.machine.Live()
			must.Do(t, step.change())
			box, err := f.Start(t.Context(), s)
			if err != nil || (box == live[0]) != step.kept {
				t.Errorf("kept %v, want %v; error %v", box == live[0], step.kept, err)
			}
			box.Kill()
		}
	})
}

// Shelves share what the bounds allow by what they want.
func TestFill_IsFair(t *testing.T) {
	inBubble(t, &sandboxtest.Machine{StartTime: time.Second}, func(t *testing.T, f *fixture) {
		f.budget = 6 * unmeasuredSize
		f.keep(4, "a", "b", "c")
		f.Fill()
		for _, name := range []string{"a", "b", "c"} {
			if n := f.ready(name); n != 2 {
				t.Errorf("%d of %s are ready, want 2", n, name)
			}
		}
		if _, most := f.machine.Live(); most != 6 {
			t.Errorf("%d lived at once", most)
		}
	})
}

// The pool never uses more than its memory, as far as it was measured, and
// goes on when some is free.
func TestBudget(t *testing.T) {
	machine := seconds()
	machine.Memory = 10 << 20
	inBubble(t, machine, func(t *testing.T, f *fixture) {
		f.budget = 100 << 20 // one that was not measured, or 8 of 12 MiB
		limited := spec("a")
		limited.Limits.Memory = 1 << 30
		f.Keep([]Kind{{limited, 20}})
		f.Fill()
		if n := f.ready("a"); n != 8 {
			t.Errorf("%d are ready, want 8", n)
		}
		box := must.Get(f.Start(t.Context(), limited))(t)
		if n := f.ready("a"); n != 8 {
			t.Errorf("%d are ready after a call, want 8", n)
		}
		box.Kill()
	})
}

// What does not start is tried again after longer and longer pauses, then only
// when a call comes.
func TestFailures_AreRetriedMoreAndMoreSeldom(t *testing.T) {
	inBubble(t, &sandboxtest.Machine{FailureRate: 1}, func(t *testing.T, f *fixture) {
		f.keep(1, "a")
		f.Fill()
		pause := firstRetry
		for try := 1; try < maxFailures; try++ {
			time.Sleep(pause - 1)
			synctest.Wait()
			if n := f.machine.Started(); n != try {
				t.Errorf("%d starts before pause %d is over", n, try)
			}
			time.Sleep(time.Nanosecond)
			pause *= 2
		}
		time.Sleep(time.Hour)
		if n := f.machine.Started(); n != maxFailures {
			t.Errorf("%d starts, want %d", n, maxFailures)
		}
		if _, err := f.Start(t.Context(), spec("a")); err == nil {
			t.Error("a sandbox that cannot start was handed out")
		}
		time.Sleep(firstRetry / 2) // that call had the pool try once more
		synctest.Wait()
		if n := f.machine.Started(); n != maxFailures+2 {
			t.Errorf("%d starts, want %d", n, maxFailures+2)
		}
		f.machine.SetFailureRate(0)
		if n := f.ready("a"); n < 1 {
			t.Error("nothing is ready when starts succeed again")
		}
	})
}

// With a machine that fails now and then, every call is answered, with a
// sandbox or an error.
func TestFailures_NowAndThen(t *testing.T) {
	machine := &sandboxtest.Machine{StartTime: time.Second, FailureRate: 0.3, Rand: seed.New(t)}
	inBubble(t, machine, func(t *testing.T, f *fixture) {
		f.keep(3, "a", "b")
		f.Fill()
		var calls sync.WaitGroup
		for i := range 200 {
			calls.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				box, err := f.Start(t.Context(), spec([]string{"a", "b"}[i%2]))
				var dead *sandbox.DeadError
				if err != nil && !errors.As(err, &dead) {
					t.Errorf("error %v", err)
				}
				if err == nil {
					box.Kill()
				}
			})
		}
		calls.Wait()
		for _, name := range []string{"a", "b"} {
			f.mu.Lock()
			if n := len(f.shelves[name].waiting); n > 0 {
				t.Errorf("%d calls wait for ever", n)
			}
			f.mu.Unlock()
		}
	})
}

// A call that is given up while it waits for a start leaves it to the next.
func TestStart_Cancelled(t *testing.T) {
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		f.keep(1, "a")
		f.Fill()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if _, err := f.Start(ctx, spec("a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if n := f.ready("a"); n < 1 || len(f.shelves["a"].waiting) > 0 {
			t.Errorf("%d are ready, %d wait", n, len(f.shelves["a"].waiting))
		}
	})
}

// Close may come at any moment, and leaves nothing.
func TestClose_AtAnyMoment(t *testing.T) {
	for round := range 12 {
		inBubble(t, seconds(), func(t *testing.T, f *fixture) {
			f.keep(3, "a")
			f.Fill()
			var calls sync.WaitGroup
			for range 3 {
				calls.Go(func() {
					if box, err := f.Start(t.Context(), spec("a")); err == nil {
						box.Kill()
					}
				})
			}
			time.Sleep(time.Duration(round) * 200 * time.Millisecond)
			f.Close(time.Hour)
			calls.Wait()
			f.Fill()
			f.keep(3, "a")
			synctest.Wait()
			if live, _ := f.machine.Live(); len(live) > 0 {
				t.Errorf("%d sandboxes are left", len(live))
			}
		})
	}
}

// A kind that was added is kept beside the others, and until it has not been added for its time.
func TestAdd_KeepsAKindForATime(t *testing.T) {
	const idle = time.Minute
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		add := func(name string) { f.Add(Kind{spec(name), 1}, idle) }
		f.keep(1, "a")
		f.Fill()
		add("b")
		f.keep(1, "a") // which is not about b
		if a, b := f.ready("a"), f.ready("b"); a != 1 || b != 1 {
			t.Fatalf("%d and %d are ready", a, b)
		}
		time.Sleep(idle - 20*time.Second)
		add("b")
		time.Sleep(idle - 10*time.Second)
		if b := f.ready("b"); b != 1 {
			t.Errorf("%d are ready of a kind that was added again", b)
		}
		time.Sleep(10 * time.Second)
		if a, b := f.ready("a"), f.ready("b"); a != 1 || b != 0 {
			t.Errorf("after the time %d and %d are ready, want 1 and 0", a, b)
		}
	})
}

func TestAdd_DropsTheOldest(t *testing.T) {
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		f.keep(1, "a")
		f.Fill()
		for name := range maxAdded + 1 {
			f.Add(Kind{spec(string('b' + rune(name))), 1}, time.Hour)
			time.Sleep(time.Second)
		}
		if a, first, second := f.ready("a"), f.ready("b"), f.ready("c"); a != 1 || first != 0 || second != 1 {
			t.Errorf("ready: %d that are kept, %d of the first that was added, %d of the second", a, first, second)
		}
	})
}

func TestAdd_ReplacesWhatChanged(t *testing.T) {
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		f.Fill()
		f.Add(Kind{spec("a"), 1}, time.Hour)
		f.ready("a")
		changed := spec("a")
		changed.Exec = "/other"
		f.Add(Kind{changed, 1}, time.Hour)
		f.ready("a")
		if live, _ := f.machine.Live(); len(live) != 1 || live[0].Spec.Exec != "/other" {
			t.Errorf("%d are ready, want the one that changed", len(live))
		}
	})
}

// panics is a starter whose first start panics.
type panics struct {
	sandbox.Starter
	did bool
}

func (p *panics) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if !p.did {
		p.did = true
		panic("a test")
	}
	return p.Starter.Start(ctx, spec)
}

// A start that panics is one that failed: it is tried again.
func TestPool_OutlastsAPanic(t *testing.T) {
	inBubble(t, seconds(), func(t *testing.T, f *fixture) {
		f.next = &panics{Starter: f.next}
		f.keep(1, "a")
		f.Fill()
		time.Sleep(time.Minute)
		if n := f.ready("a"); n != 1 || !f.next.(*panics).did {
			t.Errorf("%d sandboxes are ready", n)
		}
	})
}

package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/pool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
)

func TestMain(m *testing.M) { os.Exit(mcptest.Main(m)) }

// house is a manager over real sandboxes.
type house struct {
	*Manager
	t   *testing.T
	set *registry.Set
}

// build starts a manager; limits that are zero are far away.
func build(t *testing.T, limits Limits) *house {
	t.Helper()
	set, err := registry.Read(mcptest.Metadata(t, mcptest.Artifacts(t)))
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Broken) > 0 {
		t.Fatal(set.Broken)
	}
	if limits.Idle == 0 {
		limits.Idle = time.Hour
	}
	if limits.Lifetime == 0 {
		limits.Lifetime = time.Hour
	}
	if limits.Max == 0 {
		limits.Max = 64
	}
	log := slog.New(slog.DiscardHandler)
	launcher := sandbox.NewLauncher(log, nil, nil)
	h := &house{New(pool.New(launcher, pool.Options{}, log), limits, log), t, set}
	t.Cleanup(func() {
		h.Close()
		launcher.Close(20 * time.Second)
		mcptest.Gone(t, 10*time.Second, mcptest.Descendants(os.Getpid()))
	})
	return h
}

// said is what came of a call.
type said struct {
	stdout string
	fresh  string
	result sandbox.Result
	err    error
}

// take runs code in a place of the session's line.
func (h *house) take(ctx context.Context, place *Place, env, code string) said {
	defer place.Leave()
	var s said
	s.err = h.Use(ctx, place, h.set.Environments[env], func(lease Lease) error {
		s.fresh = lease.Fresh
		output := sandbox.NewOutput(1000)
		var err error
		s.result, err = lease.Execute(ctx, sandbox.Call{Code: code, Timeout: 20 * time.Second, Grace: time.Second, Keep: true, Output: output})
		stdout, stderr := output.Texts()
		s.stdout = stdout.Head + stderr.Head
		return err
	})
	return s
}

func (h *house) bash(id, code string) said {
	return h.take(h.t.Context(), h.Enqueue(id), "bash", code)
}

// want fails the test unless the call answered with stdout.
func (h *house) want(s said, stdout string) {
	h.t.Helper()
	if s.err != nil || s.stdout != stdout {
		h.t.Errorf("answer %q, error %v, want %q", s.stdout, s.err, stdout)
	}
}

func TestStateStays(t *testing.T) {
	h := build(t, Limits{})
	h.want(h.bash("a", "x=1; echo $x"), "1\n")
	h.want(h.bash("b", "echo none$x"), "none\n")
	h.want(h.bash("a", "x=$((x+1)); echo $x"), "2\n")
}

func TestOtherEnvironment(t *testing.T) {
	h := build(t, Limits{})
	h.want(h.bash("a", "echo 1"), "1\n")
	s := h.take(t.Context(), h.Enqueue("a"), "cat", "x")
	var refusal *Refusal
	if !errors.As(s.err, &refusal) || refusal.Sentence != `session "a" belongs to env "bash": call it with that env, or use another session id for "cat"` {
		t.Errorf("error %v", s.err)
	}
	h.want(h.bash("a", "echo 2"), "2\n")
}

// Calls run in the order in which they took their places, whatever order
// their goroutines run in.
func TestOrder(t *testing.T) {
	h := build(t, Limits{})
	var places []*Place
	for range 50 {
		places = append(places, h.Enqueue("a"))
	}
	var wg sync.WaitGroup
	for i := len(places) - 1; i >= 0; i-- {
		wg.Go(func() { h.take(t.Context(), places[i], "bash", fmt.Sprintf("echo -n %d. >>order", i)) })
	}
	wg.Wait()
	var want strings.Builder
	for i := range places {
		fmt.Fprintf(&want, "%d.", i)
	}
	h.want(h.bash("a", "cat order"), want.String())
}

// Sessions do not wait for each other: each of these waits for all others.
func TestSideBySide(t *testing.T) {
	h := build(t, Limits{})
	var begun, wg sync.WaitGroup
	begun.Add(8)
	for i := range 8 {
		wg.Go(func() {
			place := h.Enqueue(fmt.Sprint(i))
			defer place.Leave()
			err := h.Use(t.Context(), place, h.set.Environments["bash"], func(Lease) error {
				begun.Done()
				begun.Wait()
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A call that is cancelled while it waits never runs, and holds nobody up.
func TestCancelledWhileWaiting(t *testing.T) {
	h := build(t, Limits{})
	first, second, third := h.Enqueue("a"), h.Enqueue("a"), h.Enqueue("a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s := h.take(ctx, second, "bash", "touch ran"); !errors.Is(s.err, context.Canceled) {
		t.Errorf("error %v", s.err)
	}
	h.want(h.take(t.Context(), first, "bash", "echo 1"), "1\n")
	h.want(h.take(t.Context(), third, "bash", "find -name ran"), "")
	// One whose turn has come does not run either.
	if s := h.take(ctx, h.Enqueue("a"), "bash", "touch ran"); !errors.Is(s.err, context.Canceled) {
		t.Errorf("error %v", s.err)
	}
	h.want(h.bash("a", "find -name ran"), "")
}

func TestCancelKeepsState(t *testing.T) {
	h := build(t, Limits{})
	h.want(h.bash("a", "x=kept"), "")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	s := h.take(ctx, h.Enqueue("a"), "bash", "echo before; sleep 99")
	if s.err != nil || s.result.Outcome != frame.OutcomeCancelled || s.result.State != frame.StateKept || s.stdout != "before\n" {
		t.Errorf("answer %+v", s)
	}
	h.want(h.bash("a", "echo $x"), "kept\n")
}

func TestIdleEnds(t *testing.T) {
	h := build(t, Limits{Idle: time.Second})
	h.want(h.bash("a", "x=1"), "")
	// A running call is not cut, however long it takes.
	s := h.bash("a", "sleep 1.5; echo $x")
	h.want(s, "1\n")
	if s.fresh != "" {
		t.Errorf("the session was started anew: %s", s.fresh)
	}
	h.awaitEnd("a")
	s = h.bash("a", "echo none$x")
	h.want(s, "none\n")
	if s.fresh != "ended after 1 s idle" {
		t.Errorf("told %q", s.fresh)
	}
	// It is told once.
	if s := h.bash("a", ":"); s.fresh != "" {
		t.Errorf("told again %q", s.fresh)
	}
}

// awaitEnd waits until a session has no sandbox.
func (h *house) awaitEnd(id string) {
	h.t.Helper()
	mcptest.Eventually(h.t, 10*time.Second, func() string { return "session " + id + " lives on" }, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.sessions[id] == nil
	})
}

// Use puts the idle end off.
func TestUseKeepsIdleAway(t *testing.T) {
	h := build(t, Limits{Idle: 700 * time.Millisecond})
	h.want(h.bash("a", "x=1"), "")
	for range 4 {
		time.Sleep(350 * time.Millisecond)
		h.want(h.bash("a", "echo $x"), "1\n")
	}
}

func TestLifetimeEnds(t *testing.T) {
	h := build(t, Limits{Lifetime: time.Second})
	h.want(h.bash("a", "x=1"), "")
	h.awaitEnd("a")
	s := h.bash("a", "echo none$x")
	h.want(s, "none\n")
	if s.fresh != "ended at its lifetime of 1 s" {
		t.Errorf("told %q", s.fresh)
	}
}

// A call that runs at the end of the lifetime is finished; what waits behind
// it starts afresh.
func TestLifetimeEndsAfterTheCall(t *testing.T) {
	h := build(t, Limits{Lifetime: time.Second})
	first, second := h.Enqueue("a"), h.Enqueue("a")
	h.want(h.take(t.Context(), first, "bash", "x=1; sleep 1.3; echo $x"), "1\n")
	s := h.take(t.Context(), second, "bash", "echo none$x")
	h.want(s, "none\n")
	if s.fresh != "ended at its lifetime of 1 s" {
		t.Errorf("told %q", s.fresh)
	}
}

func TestMax(t *testing.T) {
	h := build(t, Limits{Max: 2})
	h.want(h.bash("one", "echo 1"), "1\n")
	h.want(h.bash("two", "echo 2"), "2\n")
	s := h.bash("three", "echo 3")
	var refusal *Refusal
	if !errors.As(s.err, &refusal) || !strings.HasPrefix(refusal.Sentence, "all 2 sessions are in use; idle: one (bash, 0 s), two (bash, 0 s): go on in one of these") {
		t.Errorf("error %v", s.err)
	}
	// One that is busy is not offered.
	busy := h.Enqueue("one")
	s = h.bash("three", "echo 3")
	if !errors.As(s.err, &refusal) || strings.Contains(refusal.Sentence, "one (") {
		t.Errorf("error %v", s.err)
	}
	busy.Leave()
	h.want(h.bash("two", "exec true"), "") // the interpreter ends, not the session
	h.want(h.bash("two", "echo 2"), "2\n")
}

// What fails to start takes no room.
func TestFailedStartsTakeNoRoom(t *testing.T) {
	h := build(t, Limits{Max: 1})
	broken := h.set.Environments["bash"]
	broken.SessionExec = "/nowhere/session-run"
	for range 3 {
		place := h.Enqueue("a")
		err := h.Use(t.Context(), place, broken, func(Lease) error { return nil })
		place.Leave()
		var dead *sandbox.DeadError
		if !errors.As(err, &dead) {
			t.Fatalf("error %v", err)
		}
		err = h.Once(t.Context(), broken, func(Lease) error { return nil })
		if !errors.As(err, &dead) {
			t.Fatalf("error %v", err)
		}
	}
	if len(h.once) != 0 || len(h.sessions) != 0 || h.live != 0 {
		t.Errorf("%d sandboxes, %d sessions, %d live", len(h.once), len(h.sessions), h.live)
	}
	h.want(h.bash("a", "echo 1"), "1\n")
}

// Nor does what is cancelled before its turn.
func TestCancelledTakeNoRoom(t *testing.T) {
	h := build(t, Limits{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if err := h.Once(ctx, h.set.Environments["bash"], func(Lease) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		if len(h.once) != 0 {
			t.Fatalf("%d sandboxes", len(h.once))
		}
	}
}

// kill ends a session's sandbox from outside, as the end of its agent does.
func (h *house) kill(id string) {
	h.t.Helper()
	h.mu.Lock()
	box := h.sessions[id].box
	h.mu.Unlock()
	box.Kill()
	<-box.Reaped()
}

// A sandbox that dies between two calls is replaced, and the next one told.
func TestDeathWhenIdle(t *testing.T) {
	h := build(t, Limits{Max: 1})
	h.want(h.bash("a", "x=1"), "")
	h.kill("a")
	h.awaitEnd("a")
	h.want(h.bash("b", "echo 1"), "1\n") // the room is free
	h.kill("b")
	h.awaitEnd("b")
	s := h.bash("a", "echo none$x")
	h.want(s, "none\n")
	if s.fresh != "ended because its sandbox died" {
		t.Errorf("told %q", s.fresh)
	}
}

func TestDeathInACall(t *testing.T) {
	h := build(t, Limits{})
	h.want(h.bash("a", "x=1"), "")
	time.AfterFunc(200*time.Millisecond, func() { h.kill("a") })
	s := h.bash("a", "sleep 99")
	var dead *sandbox.DeadError
	if !errors.As(s.err, &dead) {
		t.Errorf("error %v", s.err)
	}
	s = h.bash("a", "echo none$x")
	h.want(s, "none\n")
	if s.fresh != "ended because its sandbox died" {
		t.Errorf("told %q", s.fresh)
	}
}

func TestEndedAreForgotten(t *testing.T) {
	m := New(nil, Limits{}, slog.New(slog.DiscardHandler))
	for i := range 3 * maxEnded {
		m.remember(fmt.Sprint(i), "x")
		m.remember(fmt.Sprint(i), "y")
	}
	if len(m.ended) != maxEnded || len(m.order) != maxEnded {
		t.Errorf("%d and %d are remembered", len(m.ended), len(m.order))
	}
	last := fmt.Sprint(3*maxEnded - 1)
	if got := m.recall(last); got != "y" {
		t.Errorf("recalled %q", got)
	}
	if got := m.recall(last); got != "" {
		t.Errorf("recalled again %q", got)
	}
}

func TestOnce(t *testing.T) {
	h := build(t, Limits{})
	var box *sandbox.Sandbox
	err := h.Once(t.Context(), h.set.Environments["bash"], func(lease Lease) error {
		box = lease.Sandbox
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	<-box.Reaped()
}

// Calls beyond the bound wait for room, which every end gives back.
func TestOnceIsBounded(t *testing.T) {
	h := build(t, Limits{})
	for range maxOnce {
		h.once <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := h.Once(ctx, h.set.Environments["bash"], func(Lease) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { <-h.once })
	for range 3 {
		if err := h.Once(t.Context(), h.set.Environments["bash"], func(Lease) error { return nil }); err != nil {
			t.Error(err)
		}
	}
}

func TestFind(t *testing.T) {
	h := build(t, Limits{})
	h.want(h.bash("a", "echo -n hello >f"), "")
	place := h.Enqueue("a")
	defer place.Leave()
	err := h.Find(t.Context(), place, func(box *sandbox.Sandbox) error {
		data, size, err := box.Read(t.Context(), "/workspace/f", 1, 3)
		if string(data) != "ell" || size != 5 {
			t.Errorf("read %q of %d bytes", data, size)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	none := h.Enqueue("b")
	defer none.Leave()
	var refusal *Refusal
	if err := h.Find(t.Context(), none, nil); !errors.As(err, &refusal) || refusal.Sentence != `there is no session "b"` {
		t.Errorf("error %v", err)
	}
}

// At the server's end every call is answered: the one that runs, the one that
// waits and the one that comes later.
func TestClose(t *testing.T) {
	h := build(t, Limits{})
	h.want(h.bash("a", ":"), "")
	running, waiting := h.Enqueue("a"), h.Enqueue("a")
	var wg sync.WaitGroup
	wg.Go(func() {
		var dead *sandbox.DeadError // or it had not begun
		if s := h.take(t.Context(), running, "bash", "sleep 99"); !errors.As(s.err, &dead) && !errors.Is(s.err, sandbox.ErrClosed) {
			t.Errorf("running: error %v", s.err)
		}
	})
	wg.Go(func() {
		if s := h.take(t.Context(), waiting, "bash", ":"); !errors.Is(s.err, sandbox.ErrClosed) {
			t.Errorf("waiting: error %v", s.err)
		}
	})
	time.Sleep(100 * time.Millisecond)
	h.Close()
	wg.Wait()
	if s := h.bash("b", ":"); !errors.Is(s.err, sandbox.ErrClosed) {
		t.Errorf("later: error %v", s.err)
	}
	if err := h.Once(t.Context(), h.set.Environments["bash"], nil); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("later, without a session: error %v", err)
	}
	if diff := cmp.Diff(0, len(h.sessions)); diff != "" {
		t.Errorf("sessions left: %s", diff)
	}
}

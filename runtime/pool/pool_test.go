package pool

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
)

func TestMain(m *testing.M) { os.Exit(mcptest.Main(m)) }

// patience bounds what a test waits for; nothing is told by how long it took.
const patience = 20 * time.Second

// yard is a pool over real sandboxes.
type yard struct {
	*Pool
	t    testing.TB
	envs map[string]registry.Environment
}

// build makes a pool that is not open; environ is what its sandboxes get.
func build(t testing.TB, prewarm int, options Options, environ ...string) *yard {
	t.Helper()
	set, err := registry.Read(mcptest.Metadata(t, mcptest.Artifacts(t)))
	if err != nil {
		t.Fatal(err)
	}
	bash, ok := set.Environments["bash"]
	if !ok {
		t.Skip("there is no bash")
	}
	bash.Prewarm = prewarm
	log := slog.New(slog.DiscardHandler)
	launcher := sandbox.NewLauncher(log, environ, nil)
	y := &yard{New(launcher, options, log), t, map[string]registry.Environment{"bash": bash}}
	y.Set(y.envs)
	t.Cleanup(func() {
		y.Close(patience)
		launcher.Close(patience)
		mcptest.Gone(t, patience, mcptest.Descendants(os.Getpid()))
		if y.held != 0 || y.starting != 0 {
			t.Errorf("the pool counts %d bytes and %d starts after its end", y.held, y.starting)
		}
	})
	return y
}

// until waits until the pool is as f wants it, which runs with the pool
// locked.
func (y *yard) until(what string, f func() bool) {
	y.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		y.mu.Lock()
		met := f()
		y.mu.Unlock()
		if met {
			return
		}
		if time.Now().After(end) {
			y.t.Fatalf("%s did not come", what)
		}
	}
}

// full waits until n sandboxes are ready and none is on its way.
func (y *yard) full(n int) {
	y.t.Helper()
	y.until(fmt.Sprintf("%d that are ready", n), func() bool { return len(y.ready()) == n && y.starting == 0 })
}

func (y *yard) ready() []*entry { return y.shelves["bash"].ready }

// first is the sandbox that is handed out next.
func (y *yard) first() *entry {
	y.t.Helper()
	y.until("one that is ready", func() bool { return len(y.ready()) > 0 && y.starting == 0 })
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.ready()[0]
}

// take takes a sandbox, runs code in it and throws it away.
func (y *yard) take(code string) (*sandbox.Sandbox, string) {
	y.t.Helper()
	box, err := y.Take(y.t.Context(), y.envs["bash"])
	if err != nil {
		y.t.Fatal(err)
	}
	defer box.Kill()
	output := sandbox.NewOutput(1000)
	if _, err := box.Execute(y.t.Context(), sandbox.Call{Code: code, Timeout: patience, Output: output}); err != nil {
		y.t.Errorf("%s: %v", code, err)
	}
	stdout, stderr := output.Texts()
	return box, stdout.Head + stderr.Head
}

// shoot kills every process of every sandbox, as anybody on the host may.
func (y *yard) shoot() {
	for _, pid := range mcptest.Descendants(os.Getpid()) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Nothing starts before the pool is opened; then as many as are wanted, with
// their interpreters.
func TestOpen(t *testing.T) {
	y := build(t, 2, Options{})
	if started := mcptest.Descendants(os.Getpid()); len(started) > 0 {
		t.Errorf("processes %v before the pool is open", started)
	}
	y.Open()
	y.full(2)
	shells := 0
	for _, pid := range mcptest.Descendants(os.Getpid()) {
		// An agent names its interpreter too, but not first.
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		word, _, _ := strings.Cut(string(line), "\x00")
		if strings.HasSuffix(word, "bash") {
			shells++
		}
	}
	if shells != 2 {
		t.Errorf("%d interpreters run, want 2", shells)
	}
}

// What waits is what a call gets, once, and another takes its place.
func TestTake(t *testing.T) {
	y := build(t, 1, Options{Inherit: map[string]string{"GIVEN": "a b"}})
	y.Open()
	const code = `echo "$GIVEN:$SECONDS:$(ls -A /workspace /tmp | tr -d '\n')"; touch /workspace/mine /tmp/mine; sleep 99 & disown`
	seen := map[*sandbox.Sandbox]bool{}
	for range 3 {
		waits := y.first()
		box, out := y.take(code)
		if box != waits.Sandbox || seen[box] {
			t.Error("it is not the one that waited")
		}
		seen[box] = true
		if out != "a b:0:/tmp:/workspace:outputs\n" {
			t.Errorf("output %q", out)
		}
	}
}

// A sandbox that was killed while it waited is not handed out, and replaced.
func TestKilled(t *testing.T) {
	y := build(t, 1, Options{})
	y.Open()
	shot := y.first()
	y.shoot()
	for end := time.Now().Add(patience); shot.Quiet(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the end of a sandbox was not noticed")
		}
	}
	if box, out := y.take("echo alive"); box == shot.Sandbox || out != "alive\n" {
		t.Errorf("output %q of the sandbox that was killed: %v", out, box == shot.Sandbox)
	}
	if next := y.first(); next == shot {
		t.Error("it is still there")
	}
	y.shoot()
	y.until("a successor without a call", func() bool {
		return len(y.ready()) > 0 && y.ready()[0].Quiet() && y.ready()[0] != shot && y.shelves["bash"].failures > 0
	})
}

// A burst makes the pool keep more, and gives that back.
func TestBurst(t *testing.T) {
	y := build(t, 1, Options{})
	y.calm = time.Hour
	y.Open()
	y.full(1)
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if _, out := y.take("echo hello"); out != "hello\n" {
				t.Errorf("output %q", out)
			}
		})
	}
	calls.Wait()
	y.mu.Lock()
	wanted := y.shelves["bash"].want
	y.calm = time.Millisecond
	y.mu.Unlock()
	if wanted <= 1 || wanted > most {
		t.Fatalf("a burst makes the pool want %d", wanted)
	}
	y.full(wanted)
	// The last call of a burst: from then on it is calm.
	y.mu.Lock()
	y.burst(y.shelves["bash"])
	y.mu.Unlock()
	y.full(1)
}

func TestNone(t *testing.T) {
	y := build(t, 0, Options{})
	y.Open()
	if len(y.shelves) > 0 {
		t.Errorf("shelves %v", slices.Collect(maps.Keys(y.shelves)))
	}
	if _, out := y.take("echo cold"); out != "cold\n" {
		t.Errorf("output %q", out)
	}
	y.until("rest", func() bool { return y.timer == nil })
	if y.starting != 0 || y.held != 0 {
		t.Errorf("%d starts, %d bytes", y.starting, y.held)
	}
}

// What an environment was before is not handed out any more.
func TestSet(t *testing.T) {
	y := build(t, 1, Options{})
	y.Open()
	old := y.first()
	before := maps.Clone(y.envs)
	changed := y.envs["bash"]
	changed.PIDs++
	y.envs["bash"] = changed
	// A call that still names the former one, and one that comes too early.
	for _, env := range []registry.Environment{before["bash"], changed} {
		y.Set(map[string]registry.Environment{"bash": env})
		if env == changed {
			<-old.Reaped()
		}
	}
	if box, out := y.take("echo new"); box == old.Sandbox || out != "new\n" {
		t.Errorf("output %q", out)
	}
	last := y.first()
	y.Set(nil)
	<-last.Reaped()
	if len(y.shelves) > 0 || y.held != 0 {
		t.Errorf("%d shelves, %d bytes", len(y.shelves), y.held)
	}
	if _, out := y.take("echo gone"); out != "gone\n" {
		t.Errorf("output %q", out)
	}
}

// A project that was moved away is not shown to a later call.
func TestProject(t *testing.T) {
	project := filepath.Join(t.TempDir(), "project")
	write := func(text string) {
		if err := os.MkdirAll(project, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(project, "file"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	y := build(t, 1, Options{Project: project}, "PROJECT_DIR="+project, "PROJECT_MOUNT=/project")
	y.Open()
	for text, kept := range map[string]bool{"second": true, "third": false} {
		waits := y.first()
		if !kept {
			if err := os.Rename(project, project+".old"); err != nil {
				t.Fatal(err)
			}
		}
		write(text)
		if box, out := y.take("cat /project/file"); out != text || (box == waits.Sandbox) != kept {
			t.Errorf("output %q, want %q; the one that waited: %v", out, text, box == waits.Sandbox)
		}
	}
}

// The pool never holds more than its memory, and goes on when some is free.
func TestBudget(t *testing.T) {
	y := build(t, 4, Options{})
	y.budget = 2*unknown + 1
	y.Open()
	y.full(2)
	if y.next() != nil {
		t.Error("a third one is to be started")
	}
	y.take("echo")
	y.full(2)
}

// What does not start is not tried for ever, but when a call comes.
func TestFailures(t *testing.T) {
	y := build(t, 1, Options{})
	count := filepath.Join(t.TempDir(), "count")
	broken := y.envs["bash"]
	broken.SessionExec = filepath.Join(t.TempDir(), "session-run")
	if err := os.WriteFile(broken.SessionExec, []byte("#!/bin/sh\necho >>"+count+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	y.Set(map[string]registry.Environment{"bash": broken})
	y.mu.Lock()
	y.shelves["bash"].failures = maxFailures - 1
	y.mu.Unlock()
	y.Open()
	y.until("the last failure", func() bool { return y.shelves["bash"].failures == maxFailures })
	text, _ := os.ReadFile(count)
	if len(text) != 1 || y.next() != nil {
		t.Errorf("started %d times; again: %v", len(text), y.next() != nil)
	}
	if _, err := y.Take(t.Context(), broken); err == nil {
		t.Error("a sandbox that cannot start was handed out")
	}
	y.until("another try", func() bool { return y.shelves["bash"].failures == 1 })
}

// A call that is given up while it waits for a start leaves it to the next.
func TestTakeCancelled(t *testing.T) {
	y := build(t, 1, Options{})
	y.Open()
	y.until("a start", func() bool { return y.starting == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := y.Take(ctx, y.envs["bash"]); err == nil {
		t.Error("a call that was given up got a sandbox")
	}
	y.until("the one that was on its way", func() bool { return len(y.ready()) > 0 })
	if len(y.shelves["bash"].waiting) > 0 {
		t.Error("it still waits")
	}
}

// Close may come at any moment, and leaves nothing.
func TestCloseUnderRefill(t *testing.T) {
	for round := range 10 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			y := build(t, 3, Options{})
			y.Open()
			var calls sync.WaitGroup
			for range 3 {
				calls.Go(func() {
					if box, err := y.Take(t.Context(), y.envs["bash"]); err == nil {
						box.Kill()
					}
				})
			}
			time.Sleep(time.Duration(round) * 4 * time.Millisecond)
			y.Close(patience)
			calls.Wait()
			y.Open()
			y.Set(y.envs)
			if len(y.shelves) > 0 || y.starting > 0 {
				t.Errorf("%d shelves, %d starts after the end", len(y.shelves), y.starting)
			}
		})
	}
}

// A sandbox is started with all that its environment says of it.
func TestSpec(t *testing.T) {
	p := New(nil, Options{Inherit: map[string]string{"LANG": "C"}}, slog.New(slog.DiscardHandler))
	got := p.spec(registry.Environment{
		Name: "bash", SessionExec: "/run", OutputBytes: 1 << 10, MemoryMB: 3, PIDs: 5, CPUs: 1.5,
	}, true)
	want := sandbox.Spec{
		Name: "bash", Exec: "/run", OutputBytes: 1 << 10, Warm: true,
		Limits: cgroup.Limits{Memory: 3 << 20, Tasks: 5, CPUs: 1.5},
		Env:    map[string]string{"LANG": "C"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

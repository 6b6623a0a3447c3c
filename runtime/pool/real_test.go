package pool

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

func TestMain(m *testing.M) { os.Exit(mcptest.Main(m)) }

// Over real sandboxes: what is ready has its interpreter loaded and nothing of
// an earlier call, is handed out once, and is not handed out when somebody
// killed it.
func TestRealSandboxes(t *testing.T) {
	set, starter := sandboxtest.Real(t)
	p := New(starter, slog.New(slog.DiscardHandler))
	defer p.Close(patience.Long)
	spec := sandbox.Spec{Name: "bash", Exec: set.Environments["bash"].SessionExec, OutputBytes: 1000, Variables: map[string]string{"GIVEN": "a b"}}
	p.Keep([]Kind{{spec, 1}})
	p.Fill()
	// first waits for the sandbox that is handed out next.
	first := func() sandbox.Sandbox {
		t.Helper()
		for end := time.Now().Add(patience.Long); time.Now().Before(end); time.Sleep(time.Millisecond) {
			p.mu.Lock()
			ready := p.shelves["bash"].ready
			if len(ready) > 0 && p.starting == 0 {
				defer p.mu.Unlock()
				return ready[0].Sandbox
			}
			p.mu.Unlock()
		}
		t.Fatal("nothing is ready")
		return nil
	}
	first()
	shells := 0
	for _, pid := range procfs.Descendants(os.Getpid()) {
		// An agent names its interpreter too, but not first.
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		word, _, _ := strings.Cut(string(line), "\x00")
		if strings.HasSuffix(word, "bash") {
			shells++
		}
	}
	if shells != 1 {
		t.Errorf("%d interpreters run, want 1", shells)
	}
	run := func() (sandbox.Sandbox, string) {
		t.Helper()
		box := must.Get(p.Start(t.Context(), spec))(t)
		defer box.Kill()
		const code = `echo "$GIVEN:$(ls -A /workspace /tmp | tr -d '\n')"; touch /workspace/mine /tmp/mine; sleep 99 & disown`
		result := must.Get(box.Run(t.Context(), sandbox.Request{Code: code, Timeout: patience.Long}))(t)
		return box, result.Stdout.Head + result.Stderr.Head
	}
	seen := map[sandbox.Sandbox]bool{}
	for range 3 {
		waits := first()
		if waits.(sandbox.Pooled).Memory() == 0 {
			t.Log("its memory was not measured")
		}
		box, out := run()
		if box != waits || seen[box] || out != "a b:/tmp:/workspace:outputs\n" {
			t.Errorf("output %q; the one that waited %v, a second time %v", out, box == waits, seen[box])
		}
		seen[box] = true
	}
	killed := first()
	for _, pid := range procfs.Descendants(os.Getpid()) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	for end := time.Now().Add(patience.Long); killed.(sandbox.Pooled).Idle(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the end of a sandbox was not noticed")
		}
	}
	if box, out := run(); box == killed || out != "a b:/tmp:/workspace:outputs\n" {
		t.Errorf("output %q of the sandbox that was killed: %v", out, box == killed)
	}
}

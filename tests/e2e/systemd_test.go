package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// managed skips the test except in a test machine whose systemd manages this user's
// services (tests/vm): elsewhere a server may have groups for other reasons.
func managed(t *testing.T) {
	t.Helper()
	if os.Getenv("NIX_SANDBOX_TEST_MACHINE") != "systemd" {
		t.Skip("this is no test machine with systemd: see tests/vm/README.md")
	}
}

// groupOf returns the folder of a process's control group.
func groupOf(t *testing.T, pid int) string {
	t.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)))(t)
	_, path, _ := strings.Cut(strings.TrimSpace(string(text)), "::")
	return filepath.Join("/sys/fs/cgroup", path)
}

// A server that a client starts in a session without a control group of its own has
// systemd delegate a scope to it, also where the client passes no XDG_RUNTIME_DIR on.
// The kernel then stops what uses too much, and nothing of the scope stays.
func TestScopeWithSystemd_IsTheServersOwn(t *testing.T) {
	managed(t)
	for name, variables := range map[string][]string{"with XDG_RUNTIME_DIR": nil, "without": {"XDG_RUNTIME_DIR="}} {
		t.Run(name, func(t *testing.T) {
			if before := groupOf(t, os.Getpid()); strings.Contains(before, "user.slice") {
				t.Fatalf("the test is in %s, which is the user's own", before)
			}
			// Before the kernel ends code, it takes all files out of memory again and again,
			// which an emulated processor may do for longer than a usual call lasts.
			options := append([]string{tightened(t, map[string]any{"memory_mb": 64, "prewarm": 0, "timeout_seconds": 300})}, variables...)
			c := mcptest.Start(t, command(t, options...))
			c.Initialize(mcptest.Newest)
			if !strings.Contains(c.Log(), "limits by=cgroup") {
				t.Fatalf("the server has no control groups:\n%s", c.Log())
			}
			scope := filepath.Dir(groupOf(t, c.PID()))
			want := fmt.Sprintf("nix-sandbox-mcp-%d-*.scope", c.PID())
			if ok, err := filepath.Match(want, filepath.Base(scope)); !ok {
				t.Errorf("the server is in %s, want %s; error %v", scope, want, err)
			}
			got := run(c, "python", hog(192))
			if !got.IsError || got.Fact("limit") != "memory_mb" || got.Fact("limits_by") != "cgroup" {
				t.Errorf("%q, facts %v, want the memory limit by the control group", got.Text(), got.Meta)
			}
			c.CloseInput()
			c.Wait(patience.Long)
			patience.Wait(t, patience.Long, func() string { return "the scope is there: " + scope }, func() bool {
				_, err := os.Stat(scope)
				return os.IsNotExist(err)
			})
		})
	}
}

// A systemd that answers nothing holds up no start.
func TestScopeWithSystemd_MayBeMissing(t *testing.T) {
	managed(t)
	c := start(t, "XDG_RUNTIME_DIR="+t.TempDir())
	expect(t, run(c, "bash", "echo 1"), "1\n")
	if !strings.Contains(c.Log(), "limits by=limit-keeper") {
		t.Errorf("the server has control groups:\n%s", c.Log())
	}
}

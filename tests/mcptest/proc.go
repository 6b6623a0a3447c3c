package mcptest

import (
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// Descendants is [procfs.Descendants].
func Descendants(pid int) []int { return procfs.Descendants(pid) }

// Descriptors is [procfs.Descriptors].
func Descriptors(t testing.TB, pid int) int {
	t.Helper()
	n := must.Get(procfs.Descriptors(pid))(t)
	return n
}

// Gone is [patience.Gone].
func Gone(t testing.TB, _ time.Duration, pids []int) {
	t.Helper()
	patience.Gone(t, pids...)
}

// Eventually is [patience.Wait].
func Eventually(t testing.TB, within time.Duration, what func() string, ok func() bool) {
	t.Helper()
	patience.Wait(t, within, what, ok)
}

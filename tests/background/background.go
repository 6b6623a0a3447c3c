// Package background ends servers that commands started in the background. It is not part of
// undertest, because parts/desk imports net, which makes a program that is linked dynamically, and the
// worker of tests/differential has no loader.
package background

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// EndServers ends, when a test ends, the servers that its commands started in the background. Their
// XDG_RUNTIME_DIR, or their XDG_STATE_HOME without one, is the folder runtime.
func EndServers(t testing.TB, runtime string) {
	t.Helper()
	t.Cleanup(func() {
		var pids []int
		for _, server := range desk.Find([]string{filepath.Join(runtime, "nix-sandbox-mcp"), filepath.Join(runtime, "nix-sandbox-mcp", "run")}) {
			pids = append(pids, server.PID)
			_ = syscall.Kill(server.PID, syscall.SIGTERM)
		}
		patience.Gone(t, pids...)
	})
}

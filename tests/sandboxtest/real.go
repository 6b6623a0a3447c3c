package sandboxtest

import (
	"log/slog"
	"os"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox/framed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// Real returns the environments that this machine has the interpreters for, bash
// among them, and a starter of their sandboxes: real ones, in a jail. At the end of
// the test nothing may be left of these. It skips the test where there is no bash.
func Real(t testing.TB) (*registry.Set, sandbox.Starter) {
	t.Helper()
	set := must.Get(registry.Read(mcptest.Metadata(t, mcptest.Artifacts(t))))(t)
	if _, ok := set.Environments["bash"]; !ok {
		t.Skip("there is no bash")
	}
	starter := framed.New(slog.New(slog.DiscardHandler), framed.Options{})
	t.Cleanup(func() {
		starter.Close(patience.Long)
		patience.Gone(t, procfs.Descendants(os.Getpid())...)
	})
	return set, starter
}

// Spec returns the sandbox that a call needs.
func Spec(c call.Call) sandbox.Spec {
	return sandbox.Spec{Name: c.Env.Name, Exec: c.Env.SessionExec, OutputBytes: c.Env.OutputBytes}
}

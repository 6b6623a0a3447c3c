package network

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// serve starts the server under test on a world's host side, with environments of these
// artifacts. No sandbox waits for a call, so that each one is known.
func serve(t *testing.T, w *networld.World, names ...string) *mcptest.Client {
	t.Helper()
	client := start(t, w, names...)
	client.Initialize(mcptest.Newest)
	return client
}

// start is serve before the client says anything.
func start(t *testing.T, w *networld.World, names ...string) *mcptest.Client {
	t.Helper()
	cmd := command(t, names...)
	var client *mcptest.Client
	must.Do(t, w.Do(func() error {
		client = mcptest.Start(t, cmd)
		return nil
	}))
	return client
}

// command is a server of these artifacts that has not started.
func command(t *testing.T, names ...string) *exec.Cmd {
	t.Helper()
	return commandWith(t, func(_ *testing.T, program string) string { return program }, names...)
}

// commandWith is command with something else in place of the programs of the artifacts.
func commandWith(t *testing.T, other func(t *testing.T, program string) string, names ...string) *exec.Cmd {
	t.Helper()
	environments := map[string]map[string]any{}
	for _, name := range names {
		dir := undertest.Artifact(t, name)
		var fields map[string]any
		must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(dir, "metadata.json")))(t), &fields))
		fields["exec"], fields["session_exec"] = other(t, filepath.Join(dir, "bin", "run")), other(t, filepath.Join(dir, "bin", "session-run"))
		fields["prewarm"] = 0
		environments[name] = fields
	}
	cmd := exec.Command(undertest.Server(t), "--stdio", "--log-format", "json")
	home := t.TempDir()
	// A test has more sessions than may live at once.
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "SESSION_IDLE_TIMEOUT=10", "NIX_SANDBOX_METADATA=" + mcptest.MetadataWith(t, environments, map[string]any{"serve": mcptest.Serve(nil)})}
	return cmd
}

// proxies are the processes that connect a server's sandboxes with their hosts.
func proxies(server int) []int {
	return slices.DeleteFunc(procfs.Descendants(server), func(pid int) bool {
		p, err := procfs.Read(pid)
		return err != nil || p.Name() != "nix-sandbox-net"
	})
}

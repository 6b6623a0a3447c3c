package clients

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Claude Code accepts the plugin and the marketplace with its strictest check, and installs one
// from the other.
func TestClaudeCode_TakesThePlugin(t *testing.T) {
	s := prepare(t)
	checkout := must.Get(filepath.Abs("../.."))(t)
	for _, path := range []string{checkout, filepath.Join(checkout, "dist", "plugin")} {
		if out := s.run(t, s.Claude, "plugin", "validate", "--strict", path); out.status != 0 {
			t.Errorf("plugin validate %s: status %d: %s%s", path, out.status, out.stdout, out.stderr)
		}
	}
	// The control: a field that there is not.
	wrong := filepath.Join(t.TempDir(), ".claude-plugin")
	must.Do(t, os.Mkdir(wrong, 0o755))
	text := must.Get(os.ReadFile(filepath.Join(checkout, "dist/plugin/.claude-plugin/plugin.json")))(t)
	text = []byte(strings.Replace(string(text), `"mcpServers"`, `"mcpServants"`, 1))
	must.Do(t, os.WriteFile(filepath.Join(wrong, "plugin.json"), text, 0o644))
	if out := s.run(t, s.Claude, "plugin", "validate", "--strict", filepath.Dir(wrong)); out.status == 0 {
		t.Errorf("a plugin with an unknown field is accepted: %s", out.stdout)
	}

	if out := s.run(t, s.Claude, "plugin", "marketplace", "add", checkout); out.status != 0 {
		t.Fatalf("plugin marketplace add: status %d: %s%s", out.status, out.stdout, out.stderr)
	}
	if out := s.run(t, s.Claude, "plugin", "install", "nix-sandbox@nix-sandbox-mcp"); out.status != 0 {
		t.Fatalf("plugin install: status %d: %s%s", out.status, out.stdout, out.stderr)
	}
	if out := s.run(t, s.Claude, "mcp", "list"); !strings.Contains(out.stdout, "plugin:nix-sandbox:sandbox: nix-sandbox-mcp --stdio") {
		t.Errorf("mcp list prints %s%s", out.stdout, out.stderr)
	}
}

package clients

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Claude Code takes the server with the one command of docs/clients.md, finds
// it connected, and leaves nothing running. It needs no login for that.
func TestClaudeCode(t *testing.T) {
	s := prepare(t)
	claude := s.Claude

	out := s.run(t, claude, append([]string{"mcp", "add", "sandbox", "--"}, s.recorded(t)...)...)
	if out.status != 0 {
		t.Fatalf("mcp add: status %d: %s%s", out.status, out.stdout, out.stderr)
	}
	text := must.Get(os.ReadFile(filepath.Join(s.home, ".claude.json")))(t)
	var config struct {
		Projects map[string]struct {
			MCPServers map[string]struct {
				Type, Command string
				Args          []string
			}
		}
	}
	must.Do(t, json.Unmarshal(text, &config))
	found := false
	for _, project := range config.Projects {
		server := project.MCPServers["sandbox"]
		found = found || server.Type == "stdio" && slices.Contains(server.Args, "--stdio")
	}
	if !found {
		t.Errorf("its configuration lacks the server: %s", text)
	}

	// list starts the server, opens a connection and ends it.
	out = s.run(t, claude, "mcp", "list")
	if out.status != 0 || !strings.Contains(out.stdout, "Connected") || strings.Contains(out.stdout, "Failed") {
		t.Errorf("mcp list: status %d: %s%s", out.status, out.stdout, out.stderr)
	}
	methods := s.methods(t)
	if !slices.Contains(methods, "server/discover") && !slices.Contains(methods, "initialize") {
		t.Errorf("it opened the connection with %v", methods)
	}
}

// A server that does not start is told from one that does: the test above
// would fail.
func TestClaudeCodeTellsFailure(t *testing.T) {
	s := prepare(t)
	claude := s.Claude
	if out := s.run(t, claude, "mcp", "add", "broken", "--", s.server, "--no-such-flag"); out.status != 0 {
		t.Fatalf("mcp add: status %d: %s%s", out.status, out.stdout, out.stderr)
	}
	if out := s.run(t, claude, "mcp", "list"); strings.Contains(out.stdout, "Connected") || !strings.Contains(out.stdout, "Failed") {
		t.Errorf("mcp list: %s%s", out.stdout, out.stderr)
	}
}

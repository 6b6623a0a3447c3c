package clients

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// installed are the clients that are asked what they make of their files after client-config
// --install. Each starts the server, but for Codex, which only reads its file.
var installed = []struct {
	name    string
	program func(setup) []string
	// file is in the home, and has other settings. The client's command keeps comments, if it has one.
	file, old string
	listed    string
}{
	{"claude-code", func(s setup) []string { return []string{s.Claude, "mcp", "list"} }, ".claude.json", "{\n  \"numStartups\": 3\n}\n", "sandbox: @COMMAND@ --stdio - ✔ Connected"},
	{"codex", func(s setup) []string { return []string{s.Codex, "mcp", "get", "sandbox"} }, ".codex/config.toml", "# Mine.\nhide_agent_reasoning = true\n", "command: @COMMAND@"},
	{"gemini-cli", func(s setup) []string { return []string{s.Node, s.Gemini, "mcp", "list"} }, ".gemini/settings.json", "{\n  // Mine.\n  \"ui\": {\n    \"hideTips\": true\n  }\n}\n", "@COMMAND@ --stdio (stdio) - Connected"},
	{"opencode", func(s setup) []string { return []string{s.OpenCode, "mcp", "list"} }, ".config/opencode/opencode.json", "{\n  \"autoupdate\": false\n}\n", "connected"},
}

func TestInstall(t *testing.T) {
	given(t)
	if _, err := exec.LookPath("nix-store"); err != nil {
		t.Skip(err) // it makes the link that keeps the server
	}
	for _, client := range installed {
		t.Run(client.name, func(t *testing.T) {
			s := prepare(t)
			command := client.program(s)
			if _, err := os.Stat(command[0]); err != nil {
				t.Skip(err)
			}
			path := filepath.Join(s.home, client.file)
			must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
			must.Do(t, os.WriteFile(path, []byte(client.old), 0o600))
			// Gemini CLI starts no server in a folder that it does not trust.
			trusted := must.Get(json.Marshal(map[string]string{s.home: "TRUST_FOLDER"}))(t)
			must.Do(t, os.MkdirAll(filepath.Join(s.home, ".gemini"), 0o700))
			must.Do(t, os.WriteFile(filepath.Join(s.home, ".gemini", "trustedFolders.json"), trusted, 0o600))

			link := filepath.Join(s.home, ".local/state/nix-sandbox-mcp/server/bin/nix-sandbox-mcp")

			// The control: the client does not know the server.
			if out := s.run(t, command[0], command[1:]...); strings.Contains(out.stdout+out.stderr, link) {
				t.Fatalf("before: %s%s", out.stdout, out.stderr)
			}
			for range 2 {
				if out := s.run(t, s.server, "client-config", client.name, "--install"); out.status != 0 {
					t.Fatalf("--install: status %d: %s%s", out.status, out.stdout, out.stderr)
				}
			}
			for line := range strings.Lines(client.old) {
				if text := strings.Trim(line, "{},\n "); !strings.Contains(string(must.Get(os.ReadFile(path))(t)), text) {
					t.Errorf("the file has lost %q", text)
				}
			}
			out := s.run(t, command[0], command[1:]...)
			if want := strings.ReplaceAll(client.listed, "@COMMAND@", link); !strings.Contains(out.stdout+out.stderr, want) {
				t.Errorf("status %d: %s%s, want %q", out.status, out.stdout, out.stderr, want)
			}
		})
	}
}

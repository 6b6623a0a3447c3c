package clients

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// The SDKs' clients show their users forms: the older one on the stream of a call, the newer one also
// by repeating the call. No host can be reached here, so a host that was allowed does not answer.
func TestSDKAsksTheUser(t *testing.T) {
	given(t)
	for _, test := range []struct{ sdk, era string }{{"sdk", "legacy"}, {"client", "legacy"}, {"client", "modern"}} {
		t.Run(test.sdk+" "+test.era, func(t *testing.T) {
			for choice, want := range map[string]string{
				"once":    "is allowed, and did not answer",
				"decline": "refused a.host.example:80 (the user said no)",
				"cancel":  "refused a.host.example:80 (a user has to allow it, and none answered)",
			} {
				s := prepare(t)
				folder := filepath.Join(s.home, "sandboxes")
				must.Do(t, os.MkdirAll(folder, 0o755))
				must.Do(t, os.Symlink(undertest.Artifact(t, "world-ask"), filepath.Join(folder, "world-ask")))
				script := must.Get(filepath.Abs("elicit.mjs"))(t)
				modules := filepath.Join(s.Folder, "node_modules")
				arguments := mcptest.Arguments{Env: "world-ask", Code: "import urllib.request\ntry: urllib.request.urlopen('http://a.host.example/')\nexcept OSError as e: pass"}
				command := append([]string{script, modules, test.sdk, test.era, `["` + choice + `"]`, string(must.Get(json.Marshal(arguments))(t))}, s.recorded(t)...)
				out := s.run(t, s.Node, command...)
				var got struct {
					Forms  []struct{ Message string }
					Result mcptest.Answer
				}
				if err := json.Unmarshal([]byte(out.stdout), &got); err != nil {
					t.Fatalf("%v: %s%s", err, out.stdout, out.stderr)
				}
				if text := got.Result.Text(); len(got.Forms) != 1 || !strings.Contains(got.Forms[0].Message, "\n> a.host.example:80\n") || !strings.Contains(text, want) {
					t.Errorf("%s: forms %q, answer %q", choice, got.Forms, text)
				}
			}
		})
	}
}

// Codex shows its editor's user the form.
func TestCodex_AsksTheUser(t *testing.T) {
	s := prepare(t)
	folder := filepath.Join(s.home, "sandboxes")
	must.Do(t, os.MkdirAll(folder, 0o755))
	must.Do(t, os.Symlink(undertest.Artifact(t, "world-ask"), filepath.Join(folder, "world-ask")))
	if out := s.run(t, s.Codex, append([]string{"mcp", "add", "sandbox", "--env", "NIX_SANDBOX_DIR=" + folder, "--"}, s.recorded(t)...)...); out.status != 0 {
		t.Fatalf("mcp add: status %d: %s%s", out.status, out.stdout, out.stderr)
	}
	c := s.codex(t)
	c.choice = "once"
	var answer mcptest.Answer
	code := "import urllib.request\ntry: urllib.request.urlopen('http://a.host.example/')\nexcept OSError as e: pass"
	if refused := c.request("mcpServer/tool/call", map[string]any{
		"threadId": c.thread(), "server": "sandbox", "tool": "run", "arguments": mcptest.Arguments{Env: "world-ask", Code: code},
	}, &answer); refused != "" {
		t.Fatal(refused)
	}
	if text := answer.Text(); len(c.forms) != 1 || !strings.Contains(c.forms[0], "> a.host.example:80") || !strings.Contains(text, "is allowed, and did not answer") {
		t.Errorf("forms %q, answer %q", c.forms, text)
	}
}

package cli

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

// A user at a terminal answers for a client that shows no forms. No host can be reached here, so one
// that was allowed does not answer.
func TestApprove_AnswersAtATerminal(t *testing.T) {
	runtime := "XDG_RUNTIME_DIR=" + t.TempDir()
	artifact := undertest.Artifact(t, "world-ask")
	cmd := command(t, "--stdio")
	folder := filepath.Join(strings.TrimPrefix(cmd.Env[0], "HOME="), "sandboxes")
	must.Do(t, os.MkdirAll(folder, 0o755))
	must.Do(t, os.Symlink(artifact, filepath.Join(folder, "world-ask")))
	cmd.Env = append(cmd.Env, runtime)
	c := mcptest.Start(t, cmd)
	c.Initialize(mcptest.Newest)
	fetch := func(host string) string {
		return c.SendRun(mcptest.Arguments{Env: "world-ask", Session: "s", Code: "import urllib.request\ntry: urllib.request.urlopen('http://" + host + "/')\nexcept OSError as e: pass"})
	}
	answers := func(id, want string) {
		t.Helper()
		if text := c.AwaitRun(id).Text(); !strings.Contains(text, want) {
			t.Errorf("%q, want %q", text, want)
		}
	}
	answers(fetch("nobody.host.example"), "a user has to allow it, and none answered")

	approve := command(t, "approve")
	approve.Env = append(approve.Env, runtime)
	u := startOnTerminal(t, 40, 120, approve)
	u.sees("Waiting for questions.")
	id := fetch("no.host.example")
	u.sees("connects to\n> no.host.example:80\n")
	u.sees("  4  No\n")
	u.types("7\n")
	u.sees("Write a number from 1 to 4:")
	u.types("4\n")
	answers(id, "refused no.host.example:80 (the user said no)")
	id = fetch("always.host.example")
	u.sees("> always.host.example:80\n")
	// A number is of one question, because code chooses when the next one comes.
	u.types("3\n")
	u.sees("Write a number from 5 to 8:")
	u.types("7\n")
	u.sees("[environments.world-ask.network]\ndomains = [\"always.host.example\"]")
	answers(id, "is allowed, and did not answer")
	answers(fetch("always.host.example"), "is allowed, and did not answer")
	// What the client withdraws is over.
	id = fetch("late.host.example")
	u.sees("> late.host.example:80\n")
	c.Notify("notifications/cancelled", map[string]any{"requestId": json.RawMessage(id)})
	u.sees("(That question is over.)")
	u.types("\x03")
	u.awaitExit()

	// It is for a person.
	approve = command(t, "approve")
	approve.Env = append(approve.Env, runtime)
	if out, err := approve.CombinedOutput(); err == nil || !strings.Contains(string(out), "approve asks a person at a terminal, and its input or output is not a terminal") {
		t.Errorf("without a terminal: %s", out)
	}
}

package clients

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// settings have Codex ask no model, and nobody else but MCP servers, and wait for these
// longer than its ten seconds.
var settings = []string{
	"-c", `model_provider="none"`, "-c", `model_providers.none={name="none", base_url="http://127.0.0.1:1/v1"}`,
	"-c", "analytics.enabled=false", "-c", "check_for_update_on_startup=false",
	"-c", "mcp_servers.sandbox.startup_timeout_sec=100", "-c", "mcp_servers.sandbox.tool_timeout_sec=100",
}

// tokenVariable is what client-config has Codex read the token from.
const tokenVariable = "NIX_SANDBOX_TOKEN"

// codex is Codex's server for editors. It needs no account to reach MCP servers, and calls
// their tools by the code that it calls them with for a model.
type codex struct {
	t    *testing.T
	end  func() // at the end of the test too
	in   io.WriteCloser
	out  *bufio.Reader
	next int
	// forms are what its user was shown. It accepts each with this choice.
	forms  []string
	choice string
}

// codex starts it.
func (s setup) codex(t *testing.T) *codex {
	t.Helper()
	cmd := s.command(t, s.Codex, append([]string{"app-server"}, settings...)...)
	log := &mcptest.Log{}
	cmd.Stderr = log
	c := &codex{t: t, in: must.Get(cmd.StdinPipe())(t), out: bufio.NewReader(must.Get(cmd.StdoutPipe())(t))}
	must.Do(t, cmd.Start())
	c.end = sync.OnceFunc(func() {
		c.in.Close()
		_, _ = io.Copy(io.Discard, c.out) // Wait closes it
		if err := cmd.Wait(); err != nil {
			t.Errorf("Codex: %v", err)
		}
		patience.Gone(t, s.left()...)
		if t.Failed() {
			t.Logf("Codex's log:\n%s", log)
		}
	})
	t.Cleanup(c.end)
	c.request("initialize", map[string]any{"clientInfo": map[string]any{"name": "test", "version": "1"}}, nil)
	return c
}

// request sends a request and decodes its result, or returns the message of an error.
func (c *codex) request(method string, params, result any) (refused string) {
	c.t.Helper()
	c.next++
	line := must.Get(json.Marshal(map[string]any{"id": c.next, "method": method, "params": params}))(c.t)
	must.Get(fmt.Fprintf(c.in, "%s\n", line))(c.t)
	for {
		line, err := c.out.ReadBytes('\n')
		if err != nil {
			c.t.Fatalf("%s: %v", method, err)
		}
		var message struct {
			ID     json.RawMessage
			Method string // of a notification, or of a request to the editor
			Params struct{ Message string }
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		must.Do(c.t, json.Unmarshal(line, &message))
		switch {
		case message.Method == "mcpServer/elicitation/request":
			c.forms = append(c.forms, message.Params.Message)
			must.Get(fmt.Fprintf(c.in, `{"id":%s,"result":{"action":"accept","content":{"choice":%q}}}`+"\n", message.ID, c.choice))(c.t)
		case message.Method != "" || string(message.ID) != fmt.Sprint(c.next):
		case message.Error != nil:
			return message.Error.Message
		default:
			if result != nil {
				must.Do(c.t, json.Unmarshal(message.Result, result))
			}
			return ""
		}
	}
}

// run has Codex call the tool of the server "sandbox" in one session.
func (c *codex) run(thread, code string) string {
	c.t.Helper()
	var answer mcptest.Answer
	if refused := c.request("mcpServer/tool/call", map[string]any{
		"threadId": thread, "server": "sandbox", "tool": "run", "arguments": mcptest.Arguments{Env: "bash", Session: "s", Code: code},
	}, &answer); refused != "" {
		return refused
	}
	return answer.Text()
}

// thread begins a conversation, which has connections of its own.
func (c *codex) thread() string {
	c.t.Helper()
	var result struct{ Thread struct{ ID string } }
	if refused := c.request("thread/start", map[string]any{"ephemeral": true}, &result); refused != "" {
		c.t.Fatal(refused)
	}
	return result.Thread.ID
}

// Codex takes the server with one command, and the tool answers it.
func TestCodex(t *testing.T) {
	s := prepare(t)
	if out := s.run(t, s.Codex, append([]string{"mcp", "add", "sandbox", "--"}, s.recorded(t)...)...); out.status != 0 {
		t.Fatalf("mcp add: status %d: %s%s", out.status, out.stdout, out.stderr)
	}
	c := s.codex(t)
	thread := c.thread()
	for code, want := range map[string]string{"x=41": "[no output]", "echo $((6 * 7))": "42\n"} {
		if got := c.run(thread, code); got != want {
			t.Errorf("%q: %q, want %q", code, got, want)
		}
	}
}

// Codex reaches the server over HTTP with what client-config prints, which is what its own
// command writes. With a wrong token it has no tool.
func TestCodex_OverHTTP(t *testing.T) {
	s := prepare(t)
	w := s.serveHTTP(t, true)
	if out := s.run(t, s.Codex, "mcp", "add", "sandbox", "--url", w.url, "--bearer-token-env-var", tokenVariable); out.status != 0 {
		t.Fatalf("mcp add: status %d: %s%s", out.status, out.stdout, out.stderr)
	}
	written := must.Get(os.ReadFile(filepath.Join(s.home, ".codex", "config.toml")))(t)
	printed := must.Get(exec.Command(s.server, "client-config", "codex", "--url", w.url).Output())(t)
	if got, want := strings.TrimSpace(string(printed)), strings.TrimSpace(string(written)); got != want {
		t.Errorf("client-config prints\n%s\nand Codex writes\n%s", got, want)
	}
	s.variables = []string{tokenVariable + "=" + w.token}
	c := s.codex(t)
	thread := c.thread()
	for _, step := range []struct{ code, want string }{{"x=41", "[no output]"}, {"echo $((x + 1))", "42\n"}} {
		if got := c.run(thread, step.code); got != step.want {
			t.Errorf("%q: %q, want %q", step.code, got, step.want)
		}
	}
	w.saw(t, "codex-mcp-client", "2025-06-18")
	c.end()

	s.variables = []string{tokenVariable + "=nsm_wrong"}
	stranger := s.codex(t)
	if got := stranger.run(stranger.thread(), "echo $((x + 1))"); !strings.Contains(got, "Auth required") {
		t.Errorf("with a wrong token: %q", got)
	}
}

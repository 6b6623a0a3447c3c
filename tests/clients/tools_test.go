package clients

import (
	"os"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
)

// toolsVariable names the server with published servers of tools: tests/toolbox/build.
const toolsVariable = "NIX_SANDBOX_TEST_TOOLS"

// published is code that calls a tool of each of the six published servers.
var published = mcptest.Arguments{Env: "published", Code: `
made = [{'name': 'Ada', 'entityType': 'person', 'observations': ['likes tea']}]
tools.memory.create_entities(entities=made)
tools.recall.create_entities(entities=made)
print(len(tools.budget.get_budget_data()) > 0)
print(tools.everything.echo(message='hello'))
print(tools.files.read_text_file(path='/data/words.txt').strip())
print(tools.memory.read_graph()['entities'][0]['name'])
print(tools.recall.read_graph()['entities'][0]['name'])
print(tools.thinking.sequentialthinking(thought='x', nextThoughtNeeded=False, thoughtNumber=1, totalThoughts=1)['thoughtNumber'])
`}

const publishedAnswer = "True\nEcho: hello\nwords in a file\nAda\nAda\n1\n"

// prepareTools is prepare, with that server.
func prepareTools(t *testing.T) setup {
	t.Helper()
	server := os.Getenv(toolsVariable)
	if server == "" {
		t.Skip(toolsVariable + " does not name the server that tests/toolbox/build makes")
	}
	s := prepare(t)
	s.server = server
	return s
}

// Code that a published client sends calls six published servers, in both eras of the protocol.
func TestInspector_CallsPublishedServers(t *testing.T) {
	for era := range eras {
		t.Run(era, func(t *testing.T) {
			s := prepareTools(t)
			if answer, status := s.inspectRun(t, era, published); status != inspectorOK || answer.Text() != publishedAnswer {
				t.Errorf("status %d: %s", status, answer.Text())
			}
		})
	}
}

func TestCodex_CallsPublishedServers(t *testing.T) {
	s := prepareTools(t)
	if out := s.run(t, s.Codex, append([]string{"mcp", "add", "sandbox", "--"}, s.recorded(t)...)...); out.status != 0 {
		t.Fatalf("mcp add: status %d: %s%s", out.status, out.stdout, out.stderr)
	}
	c := s.codex(t)
	var answer mcptest.Answer
	refused := c.request("mcpServer/tool/call", map[string]any{"threadId": c.thread(), "server": "sandbox", "tool": "run", "arguments": published}, &answer)
	if refused != "" || answer.Text() != publishedAnswer {
		t.Errorf("%s%s", refused, answer.Text())
	}
}

// Claude Code calls no tool without an account: it connects, and leaves no server of tools.
func TestClaudeCode_ConnectsToAServerWithTools(t *testing.T) {
	s := prepareTools(t)
	if out := s.run(t, s.Claude, append([]string{"mcp", "add", "sandbox", "--"}, s.recorded(t)...)...); out.status != 0 {
		t.Fatalf("mcp add: status %d: %s%s", out.status, out.stdout, out.stderr)
	}
	if out := s.run(t, s.Claude, "mcp", "list"); out.status != 0 || !strings.Contains(out.stdout, "Connected") {
		t.Errorf("mcp list: status %d: %s%s", out.status, out.stdout, out.stderr)
	}
}

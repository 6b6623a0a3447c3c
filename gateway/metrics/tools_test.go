package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

// Code chooses names of servers, and makes no series of them.
func TestUseTool(t *testing.T) {
	m := New(Options{Sessions: func() int { return 0 }})
	if text := string(m.text()); strings.Contains(text, "tool_calls_total") {
		t.Error("a server without tools has a family for them")
	}
	for n := range 1000 {
		m.UseTool(t.Context(), call.Call{}, call.ToolUse{Server: fmt.Sprint("made-up-", n), Outcome: "usage"})
	}
	for n := range 2 * maxServers {
		m.UseTool(t.Context(), call.Call{}, call.ToolUse{Server: fmt.Sprint("real-", n), Outcome: "ok"})
	}
	m.UseTool(t.Context(), call.Call{}, call.ToolUse{Server: "real-0", Outcome: "denied"})
	text := string(m.text())
	for _, want := range []string{`tool_calls_total{server="other",outcome="usage"} 1000`, `tool_calls_total{server="real-0",outcome="ok"} 1`, `tool_calls_total{server="real-0",outcome="denied"} 1`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	if n := strings.Count(text, "tool_calls_total{"); n > maxServers+3 {
		t.Errorf("%d series", n)
	}
}

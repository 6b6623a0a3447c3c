package metrics

import (
	"context"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

// maxServers bounds the servers of tools that are labels.
const maxServers = 64

// toolUse are the labels of a call of a tool.
type toolUse struct{ server, outcome string }

// UseTool implements [call.ToolObserver].
func (m *Metrics) UseTool(_ context.Context, _ call.Call, use call.ToolUse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.toolCalls == nil {
		m.toolCalls, m.servers = map[toolUse]uint64{}, map[string]bool{}
	}
	server := other
	switch use.Outcome {
	case "usage", "denied":
		// Code chooses the name of a server, which may not exist.
		if m.servers[use.Server] {
			server = use.Server
		}
	default:
		server = label(m.servers, use.Server, maxServers)
		m.servers[server] = true
	}
	m.toolCalls[toolUse{server, use.Outcome}]++
}

// writeTools writes the calls of tools, if there was one.
func (m *Metrics) writeTools(w writer) {
	if m.toolCalls == nil {
		return
	}
	samples(w, "tool_calls_total", "Calls of tools by code, by what came of them.", m.toolCalls,
		func(u toolUse) []string { return []string{"server", u.server, "outcome", u.outcome} })
}

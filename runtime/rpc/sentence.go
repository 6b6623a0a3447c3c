package rpc

import (
	"fmt"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
)

// sentence words an error of mcp-go's about the message, so that it says what
// is wrong with which value. Other errors of mcp-go's are sentences already.
func (m Message) sentence(e mcp.JSONRPCErrorDetails) string {
	p := m.fields.Params
	switch {
	case e.Code == mcp.INVALID_REQUEST && m.fields.JSONRPC != mcp.JSONRPC_VERSION:
		return fmt.Sprintf(`jsonrpc is %.20q: it must be %q`, m.fields.JSONRPC, mcp.JSONRPC_VERSION)
	case e.Code == mcp.INVALID_REQUEST && !m.typed:
		return fmt.Sprintf("params of %.80s have another type than MCP gives them", m.Method)
	case e.Code == mcp.PARSE_ERROR:
		return "the message is not a request of JSON-RPC 2.0"
	case e.Code == mcp.METHOD_NOT_FOUND && strings.HasPrefix(e.Message, "Method "):
		return fmt.Sprintf("there is no method %.80q", m.Method)
	case e.Code == mcp.INVALID_PARAMS && strings.HasSuffix(e.Message, "tool not found"):
		return fmt.Sprintf("there is no tool %.80q: the tool is %s", p.Name, tool.Name)
	case e.Code == mcp.INVALID_PARAMS && strings.HasPrefix(e.Message, "illegal base64"):
		return "cursor is none of this server's: leave it out"
	case e.Code == mcp.RESOURCE_NOT_FOUND:
		return fmt.Sprintf("%.200q is not sandbox://SESSION/PATH", p.URI)
	}
	return e.Message
}

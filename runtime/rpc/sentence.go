package rpc

import (
	"fmt"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
)

// longestURI bounds a URI that an error repeats, in bytes.
const longestURI = 4 << 10

// isUnknownURI reports whether an error of mcp-go or of the tool says that the message reads a URI
// that the server does not know.
func (m Message) isUnknownURI(e mcp.JSONRPCErrorDetails) bool {
	return m.Method == string(mcp.MethodResourcesRead) && strings.HasSuffix(e.Message, server.ErrResourceNotFound.Error())
}

// detail adds the wrong value to an error about the message.
func (m Message) detail(e *mcp.JSONRPCErrorDetails) {
	if m.isUnknownURI(*e) {
		// The protocol's page about resources asks for both, under "Error Handling". The
		// code of its revisions until 2025-11-25 is another than that of later ones.
		e.Code = mcp.RESOURCE_NOT_FOUND
		if m.isModern() {
			e.Code = mcp.INVALID_PARAMS
		}
		if uri := m.fields.Params.URI; len(uri) <= longestURI {
			e.Data = map[string]any{"uri": uri}
		}
	}
	e.Message = m.sentence(*e)
}

// sentence words an error of mcp-go's about the message. Other errors of mcp-go's are
// sentences already.
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
	case m.isUnknownURI(e) && strings.HasPrefix(e.Message, "handler not found"):
		return fmt.Sprintf("%.200q is not sandbox://SESSION/PATH", p.URI)
	case m.isUnknownURI(e):
		return strings.TrimSuffix(e.Message, ": "+server.ErrResourceNotFound.Error())
	}
	return e.Message
}

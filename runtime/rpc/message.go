// Package rpc decodes and answers a client's JSON-RPC messages for every transport.
//
// A message is decoded once. Calls of the tool and reads of its files go to the tool, in their order
// of arrival; everything else is answered here. The package promises the exact id of the request in
// its answer, that waiting calls are bounded, and that a panic costs only its own request.
//
// The types of MCP are mcp-go's. Its server is not used: it decodes each message five times, and it
// compiles JSON schemas when the program starts.
package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Message is a message of a client.
type Message struct {
	Method string
	// ID is the request's id as it came; empty for a notification.
	ID json.RawMessage
	// CancelledID is the id of the request that a notification cancels.
	CancelledID json.RawMessage

	// Trace is the request's trace id, from its _meta or, if the transport has set it, from a
	// header: 32 hexadecimal digits, or "".
	Trace string

	text   []byte
	fields fields
	// typed says that each field that is read here has the type that it should
	// have.
	typed bool
}

// fields are the parts of a message that are read.
type fields struct {
	JSONRPC string          `json:"jsonrpc"`
	Method  string          `json:"method"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result"`
	Error   json.RawMessage `json:"error"`
	Params  struct {
		Name            string `json:"name"`
		Arguments       any    `json:"arguments"`
		URI             string `json:"uri"`
		ProtocolVersion string `json:"protocolVersion"`
		ClientInfo      struct {
			Name string `json:"name"`
		} `json:"clientInfo"`
		Meta           *mcp.Meta       `json:"_meta"`
		Cursor         string          `json:"cursor"`
		RequestID      json.RawMessage `json:"requestId"`
		InputResponses json.RawMessage `json:"inputResponses"`
		RequestState   json.RawMessage `json:"requestState"`
		Capabilities   struct {
			Elicitation *mcp.ElicitationCapability `json:"elicitation"`
		} `json:"capabilities"`
		Notifications struct {
			ToolsListChanged bool `json:"toolsListChanged"`
		} `json:"notifications"`
	} `json:"params"`
}

// Decode reads a message. If the text is not a message, the reply is the answer; otherwise it is
// nil.
func Decode(text []byte) (m Message, reply mcp.JSONRPCMessage) {
	if _, err := Cost(text); err != nil {
		return m, Failure(nil, mcp.PARSE_ERROR, err.Error())
	}
	f, err := decode(text)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return m, Failure(nil, mcp.PARSE_ERROR, "the message is not JSON")
	case text[0] != '{':
		return m, Failure(nil, mcp.INVALID_REQUEST, "the message is not an object: send one request at a time")
	}
	m = Message{Method: f.Method, ID: f.ID, CancelledID: f.Params.RequestID, text: text, fields: f, typed: err == nil}
	if meta := f.Params.Meta; meta != nil {
		traceparent, _ := meta.AdditionalFields["traceparent"].(string)
		m.Trace = TraceID(traceparent)
	}
	if bytes.Equal(m.ID, []byte("null")) {
		if m.ID = nil; m.Method != "" {
			return m, Failure(nil, mcp.INVALID_REQUEST, "id is null: it must be a string or a number of 64 bits")
		}
	}
	return m, nil
}

// traceparent is a header of W3C's Trace Context, of version 00 or a later one.
var traceparent = lazyregexp.New(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$`)

// TraceID returns the trace id of a traceparent, or "" if the text is not a traceparent.
func TraceID(text string) string {
	// A longer header is of a later version, which begins with the same fields.
	found := traceparent.Get().FindStringSubmatch(bounded.Head(text, 256))
	if found == nil || found[1] == strings.Repeat("0", 32) || strings.HasPrefix(text, "ff") {
		return ""
	}
	return found[1]
}

// placeholder stands for long code while the rest of its message is decoded.
const placeholder = "\x00code\x00"

// decode decodes a text. Long code is lifted out before: encoding/json takes
// three times as long for it.
func decode(text []byte) (f fields, err error) {
	if rest, code, ok := frame.Lift(text, "code", placeholder); ok {
		err = json.Unmarshal(rest, &f)
		if arguments, ok := f.Params.Arguments.(map[string]any); ok && arguments["code"] == placeholder {
			arguments["code"] = code
			return f, err
		}
		f = fields{} // what was lifted is another field called code
	}
	err = json.Unmarshal(text, &f)
	return f, err
}

// meta is the message's _meta as it came, or nil if it has no field for the tool. Numbers keep
// their digits, which mcp-go's decoding loses.
func (m *Message) meta() map[string]json.RawMessage {
	if m.fields.Params.Meta == nil || !tool.IsGiven(m.fields.Params.Meta.AdditionalFields) {
		return nil
	}
	var again struct {
		Params struct {
			Meta map[string]json.RawMessage `json:"_meta"`
		} `json:"params"`
	}
	_ = json.Unmarshal(m.text, &again) // was decoded before
	return again.Params.Meta
}

// forget drops the parts of a message that its answer does not need, because a call may wait for
// long.
func (m *Message) forget() {
	m.text, m.fields.Params.Arguments = nil, nil
	if meta := m.fields.Params.Meta; meta != nil {
		left := &mcp.Meta{}
		left.SetProtocolVersion(meta.ProtocolVersion())
		switch meta.ProgressToken.(type) {
		case string, float64: // MCP has no others
			left.ProgressToken = meta.ProgressToken
		}
		m.fields.Params.Meta = left
	}
}

// IsRequest reports whether the message wants an answer.
func (m Message) IsRequest() bool { return len(m.ID) > 0 }

// Waits reports whether answering the message may wait for a sandbox.
func (m Message) Waits() bool {
	return m.IsRequest() && (m.Method == string(mcp.MethodToolsCall) || m.Method == string(mcp.MethodResourcesRead))
}

// ProtocolVersion is the message's version of the protocol, or "" in protocols with a handshake.
func (m Message) ProtocolVersion() string { return m.fields.Params.Meta.ProtocolVersion() }

// Elicits reports whether the client says, when it begins or in each message, that it shows its user
// forms. A capability without a mode is one for forms.
func (m Message) Elicits() bool {
	can := m.fields.Params.Capabilities.Elicitation
	if m.isStateless() {
		can = nil
		if all := m.fields.Params.Meta.ClientCapabilities(); all != nil {
			can = all.Elicitation
		}
	}
	return can != nil && (can.Form != nil || can.URL == nil)
}

// Names returns the names in the message's params: a tool, and the URI of a resource.
func (m Message) Names() (name, uri string) { return m.fields.Params.Name, m.fields.Params.URI }

// Client returns the name of a client that begins, and the version of the protocol that it asks
// for. Each has at most 64 bytes.
func (m Message) Client() (name, version string) {
	if m.isStateless() {
		if info := m.fields.Params.Meta.ClientInfo(); info != nil {
			name = info.Name
		}
	} else {
		name, version = m.fields.Params.ClientInfo.Name, m.fields.Params.ProtocolVersion
	}
	return bounded.Head(name, 64), bounded.Head(version, 64)
}

// isStateless reports whether the message is of stateless MCP.
func (m Message) isStateless() bool { return mcp.IsModernProtocol(m.ProtocolVersion()) }

// isReply reports whether the message answers a request of this server.
func (m Message) isReply() bool {
	return m.Method == "" && (m.fields.Result != nil || m.fields.Error != nil)
}

// maxNumber is the length of a 64-bit number.
const maxNumber = len("-9223372036854775808")

// replyID is the id for the reply if it is a string or a number of 64 bits, or nil. A float64 would
// change long numbers.
func (m Message) replyID() any {
	switch {
	case len(m.ID) == 0:
		return nil
	case m.ID[0] == '"':
		var id string
		if json.Unmarshal(m.ID, &id) == nil {
			return id
		}
	case len(m.ID) <= maxNumber && (m.ID[0] == '-' || '0' <= m.ID[0] && m.ID[0] <= '9'):
		return m.ID
	}
	return nil
}

// Failure returns an error reply; id is nil if it is unknown.
func Failure(id json.RawMessage, code int, text string) mcp.JSONRPCMessage {
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	return mcp.NewJSONRPCError(mcp.NewRequestId(id), code, text, nil)
}

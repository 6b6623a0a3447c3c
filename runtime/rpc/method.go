package rpc

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
)

// longestURI bounds a URI that an error repeats, in bytes.
const longestURI = 4 << 10

// method answers a request that has no error of form.
type method struct {
	// era is that of the revisions that have the method; the zero value means all.
	era    era
	answer func(h *Handler, m Message) (mcp.ResultMetadata, error)
}

// era tells the revisions of MCP with a handshake from those without (2026-07-28 and later).
type era int

const (
	always era = iota
	withHandshake
	withoutHandshake
)

// methods are those that [Handler.Answer] answers. Calls and reads wait for sandboxes, and a
// subscription is answered at its end: [Handler.Admit] and [Handler.Subscribe] take them.
var methods = map[mcp.MCPMethod]method{
	mcp.MethodInitialize: {withHandshake, func(h *Handler, m Message) (mcp.ResultMetadata, error) {
		return &mcp.InitializeResult{
			ProtocolVersion: mcp.NegotiateLegacyVersion(m.fields.Params.ProtocolVersion),
			ServerInfo:      h.info, Capabilities: capabilities(), Instructions: h.tool.Instructions(),
		}, nil
	}},
	mcp.MethodServerDiscover: {withoutHandshake, func(h *Handler, m Message) (mcp.ResultMetadata, error) {
		return &mcp.DiscoverResult{
			SupportedVersions: mcp.ValidProtocolVersions,
			Capabilities:      capabilities(), Instructions: h.tool.Instructions(),
		}, nil
	}},
	mcp.MethodPing: {withHandshake, func(*Handler, Message) (mcp.ResultMetadata, error) { return &mcp.Result{}, nil }},
	mcp.MethodToolsList: {always, func(h *Handler, m Message) (mcp.ResultMetadata, error) {
		return &mcp.ListToolsResult{Tools: []mcp.Tool{h.offered.now()}}, m.checkCursor()
	}},
	mcp.MethodResourcesList: {always, func(_ *Handler, m Message) (mcp.ResultMetadata, error) {
		return &mcp.ListResourcesResult{Resources: []mcp.Resource{}}, m.checkCursor()
	}},
	mcp.MethodResourcesTemplatesList: {always, func(_ *Handler, m Message) (mcp.ResultMetadata, error) {
		return &mcp.ListResourceTemplatesResult{ResourceTemplates: []mcp.ResourceTemplate{tool.Template()}}, m.checkCursor()
	}},
	mcp.MethodToolsCall:           {},
	mcp.MethodResourcesRead:       {},
	mcp.MethodSubscriptionsListen: {era: withoutHandshake},
}

func capabilities() (c mcp.ServerCapabilities) {
	_ = json.Unmarshal([]byte(`{"tools":{"listChanged":true},"resources":{}}`), &c)
	return c
}

// checkCursor refuses a cursor: no list has a second page.
func (m Message) checkCursor() error {
	if cursor := m.fields.Params.Cursor; cursor != "" {
		return fmt.Errorf("cursor %.80q is none of this server's: leave it out", cursor)
	}
	return nil
}

// refuse returns the error that answers a request of a wrong form, or nil.
func (m Message) refuse() mcp.JSONRPCMessage {
	id, _ := json.Marshal(m.replyID())
	known, ok := methods[mcp.MCPMethod(m.Method)]
	switch version := m.ProtocolVersion(); {
	case m.fields.JSONRPC != mcp.JSONRPC_VERSION:
		return Failure(id, mcp.INVALID_REQUEST, fmt.Sprintf(`jsonrpc is %.20q: it must be %q`, m.fields.JSONRPC, mcp.JSONRPC_VERSION))
	case m.replyID() == nil:
		return Failure(nil, mcp.INVALID_REQUEST, fmt.Sprintf("id is %.80s: it must be a string or a number of 64 bits", m.ID))
	case m.isStateless() && !mcp.IsValidProtocolVersion(version):
		failure := mcp.UnsupportedProtocolVersionError{Version: version, Supported: mcp.ValidProtocolVersions}.JSONRPCError()
		failure.ID = mcp.NewRequestId(m.replyID())
		return failure
	case m.isStateless() && m.fields.Params.Meta.ClientCapabilities() == nil:
		return Failure(id, mcp.INVALID_PARAMS, "missing or invalid _meta field "+mcp.MetaKeyClientCapabilities)
	case !m.typed && m.Method == "":
		return Failure(id, mcp.INVALID_REQUEST, "the message is not a request of JSON-RPC 2.0")
	case !ok:
		return Failure(id, mcp.METHOD_NOT_FOUND, fmt.Sprintf("there is no method %.80q", m.Method))
	case m.isStateless() && known.era == withHandshake:
		return Failure(id, mcp.METHOD_NOT_FOUND, fmt.Sprintf("MCP %s has no method %q: its clients begin with %s, or with a call", version, m.Method, mcp.MethodServerDiscover))
	case !m.isStateless() && known.era == withoutHandshake:
		return Failure(id, mcp.METHOD_NOT_FOUND, fmt.Sprintf("%q is a method of MCP %s: name that version in _meta", m.Method, mcp.LATEST_PROTOCOL_VERSION))
	case !m.typed:
		return Failure(id, mcp.INVALID_REQUEST, fmt.Sprintf("params of %.80s have another type than MCP gives them", m.Method))
	}
	return nil
}

// noResource words the error of a read. The protocol's page about resources asks for the URI and
// the code, under "Error Handling". The code of its revisions until 2025-11-25 is another one than
// that of later revisions.
func (m Message) noResource(err error) mcp.JSONRPCMessage {
	code := mcp.RESOURCE_NOT_FOUND
	if m.isStateless() {
		code = mcp.INVALID_PARAMS
	}
	var data any
	if uri := m.fields.Params.URI; len(uri) <= longestURI {
		data = map[string]any{"uri": uri}
	}
	return mcp.NewJSONRPCError(mcp.NewRequestId(m.replyID()), code, err.Error(), data)
}

// offered is the tool as it is listed, and the clients that are told of changes.
type offered struct {
	mu      sync.Mutex
	tool    mcp.Tool
	clients map[chan struct{}]bool
}

func (o *offered) now() mcp.Tool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tool
}

func (o *offered) show(t mcp.Tool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tool = t
	for changed := range maps.Keys(o.clients) {
		select {
		case changed <- struct{}{}:
		default: // the client has not been told of the last change yet
		}
	}
}

// Changes returns a channel from which a transport reads that the list of tools has changed, and
// then writes [Changed] to its client. Changes before that are one. Stop is called at the client's
// end.
func (h *Handler) Changes() (changed <-chan struct{}, stop func()) {
	one := make(chan struct{}, 1)
	h.offered.mu.Lock()
	defer h.offered.mu.Unlock()
	h.offered.clients[one] = true
	return one, func() {
		h.offered.mu.Lock()
		defer h.offered.mu.Unlock()
		delete(h.offered.clients, one)
	}
}

// Changed is the notification of a changed list, to the subscription with this id, or to a client
// without one if id is nil.
func Changed(id json.RawMessage) mcp.JSONRPCNotification {
	return notification(mcp.MethodNotificationToolsListChanged, id, nil)
}

func notification(method string, subscription json.RawMessage, fields map[string]any) mcp.JSONRPCNotification {
	n := mcp.JSONRPCNotification{JSONRPC: mcp.JSONRPC_VERSION, Notification: mcp.Notification{Method: method}}
	n.Params.AdditionalFields = fields
	if subscription != nil {
		n.Params.Meta = map[string]any{mcp.MetaKeySubscriptionID: subscription}
	}
	return n
}

// Subscription is one that a client has opened.
type Subscription struct {
	// Acknowledged is the notification that a transport writes first.
	Acknowledged mcp.JSONRPCNotification
	// ToolsListChanged says that the client subscribed to changes of the list of tools. Without it,
	// the subscription ends at once: there is nothing else to tell.
	ToolsListChanged bool
}

// Subscribe takes a request of subscriptions/listen. The reply ends the subscription, or refuses it
// if the subscription is nil.
func (h *Handler) Subscribe(m Message) (s *Subscription, reply mcp.JSONRPCMessage) {
	if reply = m.refuse(); reply != nil {
		return nil, reply
	}
	wanted := mcp.SubscriptionFilter{ToolsListChanged: m.fields.Params.Notifications.ToolsListChanged}
	result := &mcp.SubscriptionsListenResult{}
	result.EnsureResultMeta().SetSubscriptionID(m.replyID())
	return &Subscription{
		Acknowledged:     notification(mcp.MethodNotificationSubscriptionsAcknowledged, m.ID, map[string]any{"notifications": wanted}),
		ToolsListChanged: wanted.ToolsListChanged,
	}, h.complete(m, result)
}

package rpc

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
)

// Admission charges principals for calls.
type Admission interface {
	// Admit charges a principal for a call that runs or waits, with a message of so many
	// bytes, until release is called. It does not wait.
	Admit(principal string, bytes int) (release func(), err error)
}

// Bounds are those of a server with one client: how many calls may run or wait, and how many bytes
// their messages may have together.
type Bounds struct {
	Calls, Bytes int

	mu           sync.Mutex
	calls, bytes int
}

// DefaultBounds returns the usual Bounds.
func DefaultBounds() *Bounds { return &Bounds{Calls: 1024, Bytes: 64 << 20} }

// Admit implements [Admission].
func (b *Bounds) Admit(_ string, bytes int) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls >= b.Calls || b.bytes+bytes > b.Bytes {
		return nil, &call.BusyError{Calls: b.Calls, Bytes: b.Bytes}
	}
	b.calls++
	b.bytes += bytes
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.calls--
		b.bytes -= bytes
	}, nil
}

// Handler answers messages. Its methods may be called at the same time.
type Handler struct {
	info  mcp.Implementation
	tool  *tool.Tool
	log   *slog.Logger
	admit Admission

	offered offered
	asked   asked // requests to clients
	held    held  // calls that wait for a retry
}

// New returns a Handler of a tool's calls. It follows the changes of the tool until the returned
// function is called.
func New(t *tool.Tool, version string, admission Admission, log *slog.Logger) (h *Handler, stop func()) {
	h = &Handler{
		info:    mcp.Implementation{Name: tool.ServerName, Version: version},
		tool:    t,
		log:     log,
		admit:   admission,
		offered: offered{clients: map[chan struct{}]bool{}},
		held:    held{calls: map[string]*holding{}},
	}
	return h, t.Watch(h.offered.show)
}

// Answer answers a message that does not wait for a sandbox. It returns nil if the message needs no
// answer: it is a notification, or a reply to a request that nobody waits for.
func (h *Handler) Answer(m Message) (reply mcp.JSONRPCMessage) {
	defer h.recover(m, &reply)
	if !m.IsRequest() || m.isReply() {
		return nil
	}
	if reply = m.refuse(); reply != nil {
		return reply
	}
	result, err := methods[mcp.MCPMethod(m.Method)].answer(h, m)
	if err != nil {
		return Failure(m.ID, mcp.INVALID_PARAMS, err.Error())
	}
	return h.complete(m, result)
}

func (h *Handler) recover(m Message, reply *mcp.JSONRPCMessage) {
	if cause := recover(); cause != nil {
		h.log.Error("a handler panicked", "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
		*reply = Failure(m.ID, mcp.INTERNAL_ERROR, "the server failed to handle this request; its log says more")
	}
}

// Call is a message that waits for a sandbox and has been admitted.
type Call struct {
	handler *Handler
	message Message
	// principal is the caller, and release returns the call's part of the bounds.
	principal string
	release   func()
	// charge returns what the transport charged for the message.
	charge func()
	// One of these answers.
	run     *tool.Run
	read    *tool.Read
	refusal mcp.JSONRPCMessage
	// elicits says that the message's client shows forms; of stateless MCP.
	elicits bool
	// digest is of the arguments of a call that may be retried, and state that of a retry.
	digest [sha256.Size]byte
	state  string
}

// Admit takes a message if [Message.Waits] is true. It does not wait, and is called in the order in
// which a principal's messages arrive. If too many calls wait already, admitted is nil and the
// reply says so; otherwise the caller must call [Call.Answer] and then [Call.Release].
func (h *Handler) Admit(principal string, m Message) (admitted *Call, reply mcp.JSONRPCMessage) {
	release, err := h.admit.Admit(principal, len(m.text))
	if err != nil {
		sentence := tool.Sentence(err)
		h.log.Warn("call refused", "principal", principal, "reason", sentence)
		h.Refuse(principal, m, errors.New(sentence))
		if m.Method == string(mcp.MethodToolsCall) && m.refuse() == nil {
			return nil, h.complete(m, mcp.NewToolResultError(sentence))
		}
		return nil, Failure(m.ID, mcp.INTERNAL_ERROR, sentence)
	}
	admitted = &Call{handler: h, message: m, principal: principal, release: release, charge: func() {}}
	admitted.refusal = m.refuse()
	switch p := m.fields.Params; {
	case admitted.refusal != nil:
	case m.isRetry():
		admitted.state, admitted.digest = m.state(), digestOf(p.Arguments)
		return admitted, nil
	case m.Method == string(mcp.MethodResourcesRead):
		if admitted.read, err = h.tool.AcceptRead(principal, p.URI); err != nil {
			admitted.refusal = m.noResource(err)
		}
	case p.Name != tool.Name:
		admitted.refusal = Failure(m.ID, mcp.INVALID_PARAMS, fmt.Sprintf("there is no tool %.80q: the tool is %s", p.Name, tool.Name))
	default:
		admitted.run = h.tool.Accept(principal, p.Arguments)
		if admitted.elicits = m.isStateless() && m.Elicits(); admitted.elicits {
			admitted.digest = digestOf(p.Arguments)
		}
		admitted.run.SetTrace(m.Trace)
		admitted.run.Give(m.meta())
	}
	if admitted.run != nil || admitted.read != nil {
		admitted.message.forget()
	}
	return admitted, nil
}

// Refuse tells observers of a refused call. Transports call it too. It does nothing for other
// messages.
func (h *Handler) Refuse(principal string, m Message, why error) {
	if m.Method == string(mcp.MethodToolsCall) && m.IsRequest() {
		h.tool.Refuse(principal, m.Trace, m.fields.Params.Arguments, why)
	}
}

// Client is the client of a call.
type Client struct {
	// Notify sends a notification before it returns. It may be nil, and is not called after
	// [Call.Answer] has returned.
	Notify func(mcp.JSONRPCNotification)
	// Request sends a request or withdraws one, and reports whether the client will get it. It is
	// nil if the client shows its user no forms.
	Request func(message any) bool
}

// Charge has the call give back what the transport charged for its message, when it has run. That is
// later than its answer if the answer is a question to the user.
func (c *Call) Charge(release func()) { c.charge = release }

// Answer answers the call until ctx ends.
func (c *Call) Answer(ctx context.Context, client Client) (reply mcp.JSONRPCMessage) {
	h := c.handler
	defer func() { c.charge() }()
	notify := client.Notify
	defer h.recover(c.message, &reply)
	switch {
	case c.refusal != nil:
		if failure, ok := c.refusal.(mcp.JSONRPCError); ok {
			h.Refuse(c.principal, c.message, errors.New(failure.Error.Message))
		}
		return c.refusal
	case c.state != "":
		return h.resume(ctx, c, notify)
	case c.elicits:
		return h.hold(ctx, c, notify)
	case c.run != nil:
		if client.Request != nil {
			c.run.SetClient(&elicitation{&h.asked, c.principal, client.Request})
		}
		return h.complete(c.message, c.run.Answer(ctx, c.progress(notify)))
	default:
		contents, err := c.read.Answer(ctx)
		if errors.As(err, new(*tool.NoResourceError)) {
			return c.message.noResource(err)
		} else if err != nil {
			return Failure(c.message.ID, mcp.INTERNAL_ERROR, err.Error())
		}
		return h.complete(c.message, &mcp.ReadResourceResult{Contents: contents})
	}
}

// Release returns the call's part of the bounds. It is called once, when the answer has been
// encoded.
func (c *Call) Release() {
	switch {
	case c.read != nil:
		c.read.Release()
	case c.run != nil:
		c.run.Release()
	}
	if c.release != nil { // otherwise it is held
		c.release()
	}
}

// progress makes notifications of a call's progress, if the client asked for
// them.
func (c *Call) progress(notify func(mcp.JSONRPCNotification)) func(seconds float64, line string) {
	meta := c.message.fields.Params.Meta
	if notify == nil || meta == nil || meta.ProgressToken == nil {
		return nil
	}
	return func(seconds float64, line string) {
		notify(mcp.JSONRPCNotification{
			JSONRPC: mcp.JSONRPC_VERSION,
			Notification: mcp.Notification{
				Method: string(mcp.MethodNotificationProgress),
				Params: mcp.NotificationParams{AdditionalFields: map[string]any{
					"progressToken": meta.ProgressToken, "progress": seconds, "message": line,
				}},
			},
		})
	}
}

// complete makes a reply of a result, in the form of the message's version of the protocol.
func (h *Handler) complete(m Message, result mcp.ResultMetadata) mcp.JSONRPCMessage {
	if m.isStateless() {
		result.SetResultType(mcp.ResultTypeComplete)
		result.EnsureResultMeta().SetServerInfo(h.info)
		if cacheable, ok := result.(mcp.CacheHintSetter); ok {
			cacheable.SetCacheHints(0, mcp.CacheScopePrivate) // mcp-go's default
		}
	}
	return mcp.NewJSONRPCResultResponse(mcp.NewRequestId(m.replyID()), result)
}

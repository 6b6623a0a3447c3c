package mcpstdio

import (
	"encoding/json"
	"io"
	"sync"
	"sync/atomic"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// maxNotes bounds the notifications of mcp-go's own that wait to be written:
// acknowledgements and changed lists. Progress does not go this way.
const maxNotes = 64

// conn is the client as mcp-go sees it, and the one writer of its stream.
type conn struct {
	failed func(error)
	notes  chan mcp.JSONRPCNotification

	// legacy is set by initialize. Other clients get the notifications that
	// they subscribed to only.
	legacy      atomic.Bool
	initialized atomic.Bool
	level       atomic.Value // mcp.LoggingLevel
	client      atomic.Value // mcp.Implementation
	able        atomic.Value // mcp.ClientCapabilities

	mu     sync.Mutex
	out    io.Writer
	broken bool

	filterMu sync.Mutex
	filter   mcp.SubscriptionFilter
}

var (
	_ server.SessionWithLogging            = (*conn)(nil)
	_ server.SessionWithClientInfo         = (*conn)(nil)
	_ server.SessionWithSubscriptionFilter = (*conn)(nil)
)

// newConn returns a conn that writes to out and calls failed at the first
// write that fails.
func newConn(out io.Writer, failed func(error)) *conn {
	return &conn{out: out, failed: failed, notes: make(chan mcp.JSONRPCNotification, maxNotes)}
}

func (c *conn) SessionID() string                                   { return "stdio" }
func (c *conn) NotificationChannel() chan<- mcp.JSONRPCNotification { return c.notes }
func (c *conn) Initialize()                                         { c.initialized.Store(true) }
func (c *conn) Initialized() bool                                   { return c.initialized.Load() }
func (c *conn) SetLogLevel(level mcp.LoggingLevel)                  { c.level.Store(level) }
func (c *conn) SetClientInfo(client mcp.Implementation)             { c.client.Store(client) }
func (c *conn) SetClientCapabilities(able mcp.ClientCapabilities)   { c.able.Store(able) }

func (c *conn) GetLogLevel() mcp.LoggingLevel {
	if level, ok := c.level.Load().(mcp.LoggingLevel); ok {
		return level
	}
	return mcp.LoggingLevelError
}

func (c *conn) GetClientInfo() mcp.Implementation {
	client, _ := c.client.Load().(mcp.Implementation)
	return client
}

func (c *conn) GetClientCapabilities() mcp.ClientCapabilities {
	able, _ := c.able.Load().(mcp.ClientCapabilities)
	return able
}

func (c *conn) SetSubscriptionFilter(filter mcp.SubscriptionFilter) {
	c.filterMu.Lock()
	defer c.filterMu.Unlock()
	c.filter = filter
}

// SubscriptionFilter is in force for clients that did not initialize, also
// while it is empty.
func (c *conn) SubscriptionFilter() (mcp.SubscriptionFilter, bool) {
	c.filterMu.Lock()
	defer c.filterMu.Unlock()
	return c.filter, !c.legacy.Load()
}

// Notify writes a notification before it returns, so that it reaches the
// client before anything that is written later.
func (c *conn) Notify(note mcp.JSONRPCNotification) { c.write(note) }

// notify writes mcp-go's notifications until quiet is closed, and what then
// waits. The channel itself stays open: mcp-go may still send.
func (c *conn) notify(quiet <-chan struct{}) {
	for {
		select {
		case note := <-c.notes:
			c.write(note)
		case <-quiet:
			for range len(c.notes) {
				c.write(<-c.notes)
			}
			return
		}
	}
}

// write writes a message as one line.
func (c *conn) write(message any) {
	text, err := json.Marshal(message)
	if err != nil {
		// Nothing that we answer with is beyond JSON.
		c.failed(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return
	}
	if _, err := c.out.Write(append(text, '\n')); err != nil {
		c.broken = true
		c.failed(err)
	}
}

// fail writes an error reply; id is nil where none is known.
func (c *conn) fail(id json.RawMessage, code int, text string) {
	c.write(failure(id, code, text))
}

// failure returns an error reply.
func failure(id json.RawMessage, code int, text string) mcp.JSONRPCMessage {
	type detail struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	return struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   detail          `json:"error"`
	}{mcp.JSONRPC_VERSION, id, detail{code, text}}
}

package mcpstdio

import (
	"encoding/json"
	"io"
	"sync"
	"sync/atomic"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

// maxNotifications bounds the notifications of mcp-go's own that wait to be
// written: acknowledgements and changed lists. Progress does not go this way.
const maxNotifications = 64

// conn is the client as mcp-go sees it, and the one writer of its stream.
type conn struct {
	failed        func(error)
	notifications chan mcp.JSONRPCNotification

	// legacy is set by initialize. Other clients get only the notifications
	// that they subscribed to.
	legacy      atomic.Bool
	initialized atomic.Bool
	// elicits is set by an initialize with the capability.
	elicits atomic.Bool

	mu     sync.Mutex
	out    io.Writer
	broken bool

	filterMu sync.Mutex
	filter   mcp.SubscriptionFilter
}

var _ server.SessionWithSubscriptionFilter = (*conn)(nil)

// newConn returns a conn that writes to out and calls failed at the first
// write that fails.
func newConn(out io.Writer, failed func(error)) *conn {
	return &conn{out: out, failed: failed, notifications: make(chan mcp.JSONRPCNotification, maxNotifications)}
}

func (c *conn) SessionID() string                                   { return "stdio" }
func (c *conn) NotificationChannel() chan<- mcp.JSONRPCNotification { return c.notifications }
func (c *conn) Initialize()                                         { c.initialized.Store(true) }
func (c *conn) Initialized() bool                                   { return c.initialized.Load() }

func (c *conn) SetSubscriptionFilter(filter mcp.SubscriptionFilter) {
	c.filterMu.Lock()
	defer c.filterMu.Unlock()
	c.filter = filter
}

// SubscriptionFilter returns the notifications that the client subscribed to. It
// applies to clients that did not send initialize, also while it is empty.
func (c *conn) SubscriptionFilter() (mcp.SubscriptionFilter, bool) {
	c.filterMu.Lock()
	defer c.filterMu.Unlock()
	return c.filter, !c.legacy.Load()
}

// Notify writes a notification before it returns, so that it reaches the
// client before anything that is written later.
func (c *conn) Notify(notification mcp.JSONRPCNotification) { c.write(notification) }

// client returns the client as calls see it.
func (c *conn) client() rpc.Client {
	client := rpc.Client{Notify: c.Notify}
	if c.elicits.Load() {
		client.Request = func(message any) bool {
			c.write(message)
			return true // a client that is gone ends the server
		}
	}
	return client
}

// writeNotifications writes mcp-go's notifications until last is closed, and then the waiting ones.
// The channel itself stays open, because mcp-go may still send.
func (c *conn) writeNotifications(last <-chan struct{}) {
	for {
		select {
		case notification := <-c.notifications:
			c.write(notification)
		case <-last:
			for range len(c.notifications) {
				c.write(<-c.notifications)
			}
			return
		}
	}
}

// write writes a message as one line, in one write.
func (c *conn) write(message any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return
	}
	// Only one message is encoded at a time, for it may be large. That of
	// HTML is not made longer by escapes for browsers.
	encoder := json.NewEncoder(c.out)
	encoder.SetEscapeHTML(false)
	// JSON can represent every answer of this server, so an error is the client's.
	if err := encoder.Encode(message); err != nil {
		c.broken = true
		c.failed(err)
	}
}

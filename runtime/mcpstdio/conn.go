package mcpstdio

import (
	"encoding/json"
	"io"
	"sync"
	"sync/atomic"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

// conn is the client, and the one writer of its stream.
type conn struct {
	failed func(error)
	// elicits is set by an initialize with the capability.
	elicits atomic.Bool

	mu     sync.Mutex
	out    io.Writer
	broken bool
}

// newConn returns a conn that writes to out and calls failed at the first
// write that fails.
func newConn(out io.Writer, failed func(error)) *conn { return &conn{out: out, failed: failed} }

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

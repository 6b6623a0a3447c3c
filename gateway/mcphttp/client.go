package mcphttp

import (
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

// maxNotifications bounds the notifications that wait to be written to one response.
const maxNotifications = 16

// client is the sender of one call: what the call tells it waits here for the response.
type client struct {
	principal     string
	notifications chan mcp.JSONRPCNotification
	// requests are to the client itself, and are nil if it shows no forms.
	requests chan any
}

func newClient(principal string) *client {
	return &client{principal: principal, notifications: make(chan mcp.JSONRPCNotification, maxNotifications)}
}

// asCaller returns the client as calls see it.
func (c *client) asCaller() rpc.Client {
	caller := rpc.Client{Notify: c.notify}
	if c.requests != nil {
		caller.Request = func(message any) bool {
			select {
			case c.requests <- message:
				return true
			default:
				return false
			}
		}
	}
	return caller
}

// notify queues a notification, or drops it if too many wait: a client that does not read
// must not delay others.
func (c *client) notify(notification mcp.JSONRPCNotification) {
	select {
	case c.notifications <- notification:
	default:
	}
}

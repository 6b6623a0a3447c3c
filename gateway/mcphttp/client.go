package mcphttp

import (
	"fmt"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

// maxNotifications bounds the notifications that wait to be written to one response.
const maxNotifications = 16

// client is the sender of one request as mcp-go sees it. Each request has its own, because
// mcp-go finds notifications and cancellations by the id of a client.
type client struct {
	id            string
	principal     string
	notifications chan mcp.JSONRPCNotification
	// requests are to the client itself, and are nil if it shows no forms.
	requests chan any
	// release gives back what the request holds until its answer is encoded.
	release func()

	// The filter applies if the request is a subscription.
	isSubscription bool
	mu             sync.Mutex
	filter         mcp.SubscriptionFilter
}

var _ server.SessionWithSubscriptionFilter = (*client)(nil)

func (s *Server) newClient(principal string) *client {
	return &client{
		id:            fmt.Sprintf("http-%d", s.ids.Add(1)),
		principal:     principal,
		notifications: make(chan mcp.JSONRPCNotification, maxNotifications),
		release:       func() {},
	}
}

func (c *client) SessionID() string                                   { return c.id }
func (c *client) NotificationChannel() chan<- mcp.JSONRPCNotification { return c.notifications }
func (c *client) Initialize()                                         {}
func (c *client) Initialized() bool                                   { return true }

// ReleaseLater takes over what a call of package tool holds.
func (c *client) ReleaseLater(release func()) { c.release = release }

// Principal returns the sender of the request, for package tool.
func (c *client) Principal() string { return c.principal }

func (c *client) SetSubscriptionFilter(filter mcp.SubscriptionFilter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filter = filter
}

func (c *client) SubscriptionFilter() (mcp.SubscriptionFilter, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.filter, c.isSubscription
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

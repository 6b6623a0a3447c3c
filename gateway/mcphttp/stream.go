package mcphttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

// openStream charges the principal for a stream until release is called. If the principal has
// too many, it answers the request and returns nil.
func (x *exchange) openStream(id json.RawMessage) (release func()) {
	release, err := x.o.Book.Streams.Try(x.who, 1)
	var quota *account.QuotaError
	if errors.As(err, &quota) {
		x.fail(http.StatusTooManyRequests, id, mcp.INTERNAL_ERROR, fmt.Sprintf("%d streams of yours are open, which are as many as you may have: close one", quota.Max))
	}
	return release
}

// stream answers a GET with the notifications for a client, until either side ends it.
func (x *exchange) stream() {
	if accept := x.r.Header.Get("Accept"); accept != "" && !strings.Contains(accept, "text/event-stream") && !strings.Contains(accept, "*/*") {
		x.fail(http.StatusNotAcceptable, nil, mcp.INVALID_REQUEST, "a GET is answered with text/event-stream: send it in the field Accept")
		return
	}
	session := x.session(rpc.Message{})
	if session == nil {
		return
	}
	release := x.openStream(nil)
	if release == nil {
		return
	}
	defer release()
	ctx, cancel := context.WithCancel(x.streams)
	defer cancel()
	// An earlier GET ends, because a lost connection may go unnoticed.
	defer x.sessions.remember(session.id, cancel, true)()
	listener := x.newClient(x.who)
	if err := x.handler.MCP().RegisterSession(ctx, listener); err != nil {
		x.fail(http.StatusInternalServerError, nil, mcp.INTERNAL_ERROR, err.Error())
		return
	}
	defer x.handler.MCP().UnregisterSession(ctx, listener.id)
	x.comment()
	x.tell(ctx, listener, nil)
}

// subscribe answers subscriptions/listen with notifications until the client hangs up or the
// server ends, and then with the result.
func (x *exchange) subscribe(m rpc.Message) {
	release := x.openStream(m.ID)
	if release == nil {
		return
	}
	defer release()
	ctx, cancel := context.WithCancel(x.streams)
	defer cancel()
	listener := x.newClient(x.who)
	listener.isSubscription = true
	mcpServer := x.handler.MCP()
	if err := mcpServer.RegisterSession(ctx, listener); err != nil {
		x.fail(http.StatusInternalServerError, m.ID, mcp.INTERNAL_ERROR, err.Error())
		return
	}
	defer mcpServer.UnregisterSession(ctx, listener.id)
	answered := make(chan mcp.JSONRPCMessage, 1)
	go func() {
		// An invalid subscription is answered at once.
		defer cancel()
		answered <- x.handler.Answer(mcpServer.WithContext(ctx, listener), m)
	}()
	x.tell(ctx, listener, m.ID)
	cancel()
	reply := <-answered
	for len(listener.notifications) > 0 {
		x.event(tagged(<-listener.notifications, m.ID))
	}
	switch {
	case x.r.Context().Err() != nil || x.isBroken:
		x.status = statusHungUp
	case x.isStream:
		x.event(reply)
	default:
		x.write(x.statusOf(reply), reply)
	}
}

// tell writes notifications and comments until ctx ends, the client has gone, or the request's
// token is no longer valid. id is that of the subscription, or nil.
func (x *exchange) tell(ctx context.Context, listener *client, id json.RawMessage) {
	ticker := time.NewTicker(commentEvery)
	defer ticker.Stop()
	for !x.isBroken {
		select {
		case notification := <-listener.notifications:
			if id != nil {
				notification = tagged(notification, id)
			}
			x.event(notification)
		case <-ticker.C:
			// A token may have expired, or have been taken back.
			if who, err := x.o.Authenticator.Authenticate(x.r); err != nil || who != x.who {
				return
			}
			x.comment()
		case <-x.r.Context().Done():
			x.status = statusHungUp
			return
		case <-ctx.Done():
			return
		}
	}
	x.status = statusHungUp
}

func tagged(notification mcp.JSONRPCNotification, id json.RawMessage) mcp.JSONRPCNotification {
	// All clients share the map.
	meta := maps.Clone(notification.Params.Meta)
	if meta == nil {
		meta = map[string]any{}
	}
	meta[mcp.MetaKeySubscriptionID] = id
	notification.Params.Meta = meta
	return notification
}

package mcphttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/account"
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
	changed, stop := x.handler.Changes()
	defer stop()
	x.comment()
	x.tell(ctx, changed, nil)
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
	subscription, reply := x.handler.Subscribe(m)
	if subscription != nil {
		changed, stop := x.handler.Changes()
		defer stop()
		x.event(subscription.Acknowledged)
		if subscription.ToolsListChanged {
			x.tell(ctx, changed, m.ID)
		}
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

// tell writes that the list of tools has changed, each time, and comments, until ctx ends, the client
// has gone, or the request's token is no longer valid. id is that of the subscription, or nil.
func (x *exchange) tell(ctx context.Context, changed <-chan struct{}, id json.RawMessage) {
	ticker := time.NewTicker(commentEvery)
	defer ticker.Stop()
	for !x.isBroken {
		select {
		case <-changed:
			x.event(rpc.Changed(id))
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

// Package mcpstdio serves MCP over the standard streams: a JSON-RPC message a line.
//
// It promises that every request is answered, but for calls that the client has cancelled, as MCP
// asks: calls run side by side, all other messages are answered in order of arrival, and at the end
// of input every message before it is still answered.
// A line that is too long, is not JSON or is not a request costs only an error reply. Memory is
// bounded whatever the client sends, and reading never waits for a call.
package mcpstdio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

const (
	// maxLine is the longest message that is read, in bytes.
	maxLine = 16 << 20
	// maxListens bounds the open subscriptions.
	maxListens = 16
)

// Server serves one client.
type Server struct {
	handler *rpc.Handler
	// afterFirst is called once, when the client's first request but for pings
	// has been answered.
	afterFirst func()
	maxLine    int

	conn    *conn
	cancel  context.CancelCauseFunc
	calls   sync.WaitGroup // calls that run or wait
	listens sync.WaitGroup // subscriptions, and the client that has initialized
	// followOnce is for the first initialize.
	followOnce sync.Once
	// listening has an element for each subscription.
	listening chan struct{}

	mu      sync.Mutex
	cancels map[string]context.CancelCauseFunc // of calls and subscriptions, by id
}

// errCancelled is the cause of the end of a request that the client has cancelled.
var errCancelled = errors.New("the client has cancelled the request")

// New returns a server of handler's answers. AfterFirst is called once, when the client's first
// request other than a ping has been answered: work that speeds up later answers may begin then.
func New(handler *rpc.Handler, afterFirst func()) *Server {
	return &Server{handler: handler, afterFirst: sync.OnceFunc(afterFirst), maxLine: maxLine, listening: make(chan struct{}, maxListens), cancels: map[string]context.CancelCauseFunc{}}
}

// Serve answers the messages of in, and returns at its end after all answers, or when ctx ends,
// which cancels the running calls. The error is one of in or out.
func (s *Server) Serve(parent context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(parent)
	s.cancel = cancel
	defer s.cancel(nil)
	s.conn = newConn(out, func(err error) { s.cancel(fmt.Errorf("write to the client: %w", err)) })
	listenCtx, hangUp := context.WithCancel(ctx)
	defer hangUp()

	lines := make(chan line)
	go read(ctx, in, s.maxLine, lines)
	for open := true; open && ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case l, more := <-lines:
			switch open = more; {
			case !open:
			case l.err != nil:
				s.cancel(fmt.Errorf("read from the client: %w", l.err))
			default:
				s.handle(ctx, listenCtx, l)
			}
		}
	}
	s.calls.Wait()
	hangUp()
	// A write that hangs ends with the process.
	s.listens.Wait()
	if parent.Err() != nil || ctx.Err() == nil {
		return nil // the parent's end is no error
	}
	return context.Cause(ctx)
}

// handle answers a line, or has it answered by a goroutine of its own.
func (s *Server) handle(ctx, listenCtx context.Context, l line) {
	defer guard.Recover(func(err error) { s.conn.write(rpc.Failure(prefixID(l.text), mcp.INTERNAL_ERROR, err.Error())) })
	if l.long {
		s.conn.write(rpc.Failure(prefixID(l.text), mcp.INVALID_REQUEST, fmt.Sprintf("the message is longer than %d bytes", s.maxLine)))
		return
	}
	m, reply := rpc.Decode(l.text)
	switch {
	case reply != nil:
		s.conn.write(reply)
	case m.Method == string(mcp.MethodNotificationCancelled):
		s.cancelRequest(string(m.CancelledID))
	case s.handler.Reply("", m):
	case m.Waits():
		s.call(ctx, m)
	case m.IsRequest() && m.Method == string(mcp.MethodSubscriptionsListen):
		s.listen(listenCtx, m)
	default:
		if m.Method == string(mcp.MethodInitialize) && m.IsRequest() {
			s.conn.elicits.Store(m.Elicits())
			s.followOnce.Do(func() { s.follow(listenCtx) })
		}
		s.reply(m, s.handler.Answer(m))
	}
}

func (s *Server) reply(m rpc.Message, reply mcp.JSONRPCMessage) {
	if reply != nil {
		s.conn.write(reply)
	}
	if m.IsRequest() && m.Method != string(mcp.MethodPing) {
		s.afterFirst()
	}
}

// call starts a call; later messages are answered meanwhile.
func (s *Server) call(ctx context.Context, m rpc.Message) {
	call, busy := s.handler.Admit("", m)
	if call == nil {
		s.conn.write(busy)
		return
	}
	ctx, forget := s.remember(ctx, m)
	s.calls.Go(func() {
		defer guard.Recover(nil) // of the write: the answer has its own
		defer forget()
		defer call.Release()
		reply := call.Answer(ctx, s.conn.client())
		if errors.Is(context.Cause(ctx), errCancelled) {
			reply = nil // the client has forgotten the id, and may take an answer for a fault
		}
		s.reply(m, reply)
	})
}

// remember returns a context that a cancellation of the message ends, until
// forget is called.
func (s *Server) remember(ctx context.Context, m rpc.Message) (_ context.Context, forget func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	key := string(m.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancels[key] = cancel
	return ctx, func() {
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.cancels, key)
	}
}

// cancelRequest ends the context of a request, even if the request still waits.
func (s *Server) cancelRequest(id string) {
	s.mu.Lock()
	cancel := s.cancels[id]
	s.mu.Unlock()
	if cancel != nil {
		cancel(errCancelled)
	}
}

// listen serves a subscription, which lasts until the client hangs up.
func (s *Server) listen(ctx context.Context, m rpc.Message) {
	select {
	case s.listening <- struct{}{}:
	default:
		s.conn.write(rpc.Failure(m.ID, mcp.INVALID_REQUEST, fmt.Sprintf("%d subscriptions are open already", cap(s.listening))))
		return
	}
	ctx, forget := s.remember(ctx, m)
	s.listens.Go(func() {
		defer guard.Recover(nil)
		subscription, reply := s.handler.Subscribe(m)
		if subscription != nil {
			changed, stop := s.handler.Changes()
			defer stop()
			s.conn.write(subscription.Acknowledged)
			if subscription.ToolsListChanged {
				s.tell(ctx, changed, m.ID)
			}
		}
		s.reply(m, reply)
		forget()
		<-s.listening
	})
}

// follow tells a client that has initialized of changes, without a subscription.
func (s *Server) follow(ctx context.Context) {
	changed, stop := s.handler.Changes()
	s.listens.Go(func() {
		defer guard.Recover(nil)
		defer stop()
		s.tell(ctx, changed, nil)
	})
}

// tell writes that the list of tools has changed, each time until ctx ends.
func (s *Server) tell(ctx context.Context, changed <-chan struct{}, subscription json.RawMessage) {
	for {
		select {
		case <-changed:
			s.conn.write(rpc.Changed(subscription))
		case <-ctx.Done():
			return
		}
	}
}

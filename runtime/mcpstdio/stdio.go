// Package mcpstdio serves MCP over the standard streams: a JSON-RPC message a
// line.
//
// It promises that every request is answered: calls run beside each other
// while everything else is answered in order of arrival, and at the end of
// input all that came before it is still answered. A line that is too long,
// is not JSON or is no request costs an error reply and nothing else. Memory
// is bounded whatever the client sends, and reading never waits for a call.
package mcpstdio

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

// bounds are what a client may ask for.
type bounds struct {
	// line is the longest message that is read, in bytes.
	line int
	// calls and bytes bound the calls that run or wait, and their messages
	// together.
	calls int
	bytes int
	// listens bounds the open subscriptions.
	listens int
}

// Admission decides, in order of arrival and before anything of a call runs,
// where it stands in line.
type Admission interface {
	// Admit returns the context that the call runs with, and a function that
	// is called when it has been answered. It must not wait.
	Admit(ctx context.Context, method string, params json.RawMessage) (context.Context, func())
	// Refuse returns the context of a call that shall be answered at once
	// with the reason why it does not run.
	Refuse(ctx context.Context, reason string) context.Context
	// Lend returns the context of a call in whose arguments standIn stands
	// for a longer text, which comes beside them.
	Lend(ctx context.Context, standIn, text string) context.Context
	// Greeted is called once, when the client's first request but for pings
	// has been answered: whatever makes the answers after it faster may begin.
	Greeted()
}

// Server serves one client.
type Server struct {
	mcp       *server.MCPServer
	admission Admission
	log       *slog.Logger
	bounds    bounds
	standIn   string // for code that is long; nobody writes it by chance

	conn    *conn
	cancel  context.CancelCauseFunc
	greeted sync.Once

	mu     sync.Mutex
	calls  map[string]context.CancelFunc // of calls that run or wait, by id
	count  int
	bytes  int
	listen int
}

// maxNumber is how long an id is that is a number of 64 bits.
const maxNumber = len("-9223372036854775808")

// envelope is what of a message decides how it is handled. It is decoded as
// mcp-go decodes it, so that both see the same.
type envelope struct {
	Method string          `json:"method"`
	ID     json.RawMessage `json:"id"`
	Params json.RawMessage `json:"params"`
}

// New returns a server of in and out.
func New(mcp *server.MCPServer, admission Admission, log *slog.Logger) *Server {
	return &Server{
		mcp:       mcp,
		admission: admission,
		log:       log,
		bounds:    bounds{line: 16 << 20, calls: 1024, bytes: 64 << 20, listens: 16},
		standIn:   rand.Text(),
		calls:     map[string]context.CancelFunc{},
	}
}

// Serve answers what it reads from in until its end, and returns when all of
// it has been answered; or when ctx ends, with what then runs cancelled. The
// error is one of in or out.
func (s *Server) Serve(parent context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(parent)
	s.cancel = cancel
	defer s.cancel(nil)
	s.conn = newConn(out, func(err error) { s.cancel(fmt.Errorf("write to the client: %w", err)) })
	if err := s.mcp.RegisterSession(ctx, s.conn); err != nil {
		return fmt.Errorf("register the client: %w", err)
	}
	defer s.mcp.UnregisterSession(ctx, s.conn.SessionID())
	ctx = s.mcp.WithContext(ctx, s.conn)

	calls := newWorkers()
	var listens, notes sync.WaitGroup
	listening, hangUp := context.WithCancel(ctx)
	defer hangUp()
	quiet := make(chan struct{})
	notes.Go(func() { s.conn.notify(quiet) })
	// Nothing writes any more when these have ended, unless a write hangs;
	// then the process's end is what ends it.
	finish := func() {
		hangUp()
		listens.Wait()
		close(quiet)
		notes.Wait()
	}

	lines := make(chan line)
	go read(ctx, in, s.bounds.line, lines)
	for {
		select {
		case <-ctx.Done():
			calls.end()
			finish()
			return trouble(parent, ctx)
		case l, open := <-lines:
			if !open {
				calls.end()
				finish()
				return trouble(parent, ctx)
			}
			if l.err != nil {
				s.cancel(fmt.Errorf("read from the client: %w", l.err))
				continue
			}
			s.handle(ctx, listening, calls, &listens, l)
		}
	}
}

// trouble returns what ended ctx; that its parent ended is none.
func trouble(parent, ctx context.Context) error {
	if parent.Err() != nil || ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// handle answers a line, or has it answered by a goroutine of its own.
func (s *Server) handle(ctx, listening context.Context, calls *workers, listens *sync.WaitGroup, l line) {
	if l.long {
		s.conn.fail(prefixID(l.text), mcp.INVALID_REQUEST, fmt.Sprintf("the message is longer than %d bytes", s.bounds.line))
		return
	}
	if len(l.text) == 0 {
		return
	}
	// mcp-go reads a message a dozen times over. Code takes another way.
	text, code := l.text, ""
	if rest, long, ok := frame.Lift(text, "code", s.standIn); ok {
		text, code = rest, long
	}
	var message envelope
	// A field of a wrong type is mcp-go's to answer; what else was decoded
	// stands.
	var wrongType *json.UnmarshalTypeError
	if err := json.Unmarshal(text, &message); err != nil && !errors.As(err, &wrongType) {
		s.conn.fail(nil, mcp.PARSE_ERROR, "the message is not JSON")
		return
	}
	if text[0] != '{' {
		s.conn.fail(nil, mcp.INVALID_REQUEST, "the message is not an object: send one request a line")
		return
	}
	request := len(message.ID) > 0 && !bytes.Equal(message.ID, []byte("null"))
	switch {
	case message.Method == string(mcp.MethodNotificationCancelled):
		s.cancelCall(message.Params)
	case request && slow(message.Method):
		if code != "" {
			ctx = s.admission.Lend(ctx, s.standIn, code)
		}
		s.call(ctx, calls, message, text, len(l.text))
	case request && message.Method == string(mcp.MethodSubscriptionsListen):
		s.subscribe(listening, listens, message, text)
	default:
		if message.Method == string(mcp.MethodInitialize) {
			s.conn.legacy.Store(true)
		}
		s.reply(ctx, message.ID, text)
		if request {
			s.greet(message.Method)
		}
	}
}

// slow says whether answering may wait for a sandbox.
func slow(method string) bool {
	return method == string(mcp.MethodToolsCall) || method == string(mcp.MethodResourcesRead)
}

// call admits a call, whose message had size bytes, and answers it beside
// what follows.
func (s *Server) call(ctx context.Context, calls *workers, message envelope, text []byte, size int) {
	s.mu.Lock()
	full := s.count >= s.bounds.calls || s.bytes+size > s.bounds.bytes
	if !full {
		s.count++
		s.bytes += size
	}
	s.mu.Unlock()
	if full {
		reason := fmt.Sprintf("the server is busy: %d calls or %d bytes of code wait already; call again when some have been answered", s.bounds.calls, s.bounds.bytes)
		s.reply(s.admission.Refuse(ctx, reason), message.ID, text)
		return
	}
	callCtx, cancel := context.WithCancel(ctx)
	key := string(message.ID)
	s.mu.Lock()
	s.calls[key] = cancel
	s.mu.Unlock()
	callCtx, leave := s.admission.Admit(callCtx, message.Method, message.Params)
	calls.do(func() {
		defer func() {
			leave()
			cancel()
			s.mu.Lock()
			delete(s.calls, key)
			s.count--
			s.bytes -= size
			s.mu.Unlock()
		}()
		s.reply(callCtx, message.ID, text)
		s.greet(message.Method)
	})
}

// cancelCall ends the context of a call, also of one that still waits.
func (s *Server) cancelCall(params json.RawMessage) {
	var cancelled struct {
		ID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &cancelled) != nil {
		return // a notification has no reply to say so in
	}
	s.mu.Lock()
	cancel := s.calls[string(cancelled.ID)]
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// subscribe serves a subscription, which lasts until the client hangs up.
func (s *Server) subscribe(ctx context.Context, listens *sync.WaitGroup, message envelope, text []byte) {
	s.mu.Lock()
	full := s.listen >= s.bounds.listens
	if !full {
		s.listen++
	}
	key := string(message.ID)
	ctx, cancel := context.WithCancel(ctx)
	if !full {
		s.calls[key] = cancel
	}
	s.mu.Unlock()
	if full {
		cancel()
		s.conn.fail(message.ID, mcp.INVALID_REQUEST, fmt.Sprintf("%d subscriptions are open already", s.bounds.listens))
		return
	}
	listens.Go(func() {
		defer cancel()
		s.reply(ctx, message.ID, text)
		s.mu.Lock()
		s.listen--
		delete(s.calls, key)
		s.mu.Unlock()
	})
}

// reply answers on the caller's goroutine.
func (s *Server) reply(ctx context.Context, id json.RawMessage, text []byte) {
	if answer := s.answer(ctx, id, text); answer != nil {
		s.conn.write(answer)
	}
}

// greet says that the client has its first answer.
func (s *Server) greet(method string) {
	if method != string(mcp.MethodPing) {
		s.greeted.Do(s.admission.Greeted)
	}
}

// answer has mcp-go handle a message; nil where there is nothing to say.
func (s *Server) answer(ctx context.Context, id json.RawMessage, text []byte) (answer mcp.JSONRPCMessage) {
	defer func() {
		if trouble := recover(); trouble != nil {
			s.log.Error("a handler panicked", "panic", fmt.Sprint(trouble), "stack", string(debug.Stack()))
			answer = failure(id, mcp.INTERNAL_ERROR, "the server failed to handle this request; its log says more")
		}
	}()
	answer = s.mcp.HandleMessage(ctx, text)
	// mcp-go reads a number as a float64, to which long ones are another.
	if len(id) > 0 && len(id) <= maxNumber && (id[0] == '-' || '0' <= id[0] && id[0] <= '9') {
		switch a := answer.(type) {
		case mcp.JSONRPCResponse:
			a.ID = mcp.NewRequestId(id)
			return a
		case mcp.JSONRPCError:
			a.ID = mcp.NewRequestId(id)
			return a
		}
	}
	return answer
}

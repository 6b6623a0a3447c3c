// Package mcphttp serves MCP over Streamable HTTP at one path. It speaks revision 2026-07-28,
// with independent requests, and the revisions from 2025-03-26 to 2025-11-25, with an HTTP
// session that begins with initialize.
//
// It promises that notifications and answers come only in the response to their own request;
// that an HTTP session is useless to other principals; that a client does not delay others if
// it does not read or has gone; and that memory is bounded.
package mcphttp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/local"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

// Path is the path of MCP. The server also answers /healthz and /readyz.
const Path = "/mcp"

// Bounds of requests, in bytes.
const (
	maxHead = 32 << 10
	maxBody = 16 << 20
	// firstPiece is the part of a message that is read before the whole is charged.
	firstPiece = 64 << 10
)

// maxConnections bounds the open connections. A further connection replaces one without a request,
// of which some are left even if there are as many requests as their account allows.
const maxConnections = account.MaxRequests + 256

// waitingAnswers says how principals share the memory of answers that cannot be charged
// yet, because clients have not read others.
var waitingAnswers = account.Terms{Total: 48 << 20, Least: 1 << 20, Reserve: 16 << 20}

// Bounds of the time that clients take.
const (
	headTimeout = 10 * time.Second
	bodyTimeout = 30 * time.Second
	// restTimeout is how long the rest of a request that is refused may take to come.
	restTimeout = time.Second
	// A message waits for memory for bodyWait. An answer waits for answerWait, or for
	// othersAnswerWait if only other principals hold memory.
	bodyWait         = 10 * time.Second
	answerWait       = time.Second
	othersAnswerWait = time.Minute
	// connectionIdle is how long a connection stays open without a request.
	connectionIdle = 2 * time.Minute
	// A client must read each piece of a response within writeTimeout, and a long response
	// at slowestRead bytes a second.
	writeTimeout = 10 * time.Second
	slowestRead  = 256 << 10
)

// returnDelay is the time until the memory of exchanges that have ended is returned to the machine,
// together with that of later ones, because this takes milliseconds of a processor.
const returnDelay = 10 * time.Second

const (
	// The response to a call becomes a stream if the call takes longer than firstComment.
	// Streams carry a comment every commentEvery, because proxies close connections that are
	// silent for a minute.
	firstComment = 10 * time.Second
	commentEvery = 15 * time.Second
)

// linesPerSecond bounds the log lines about refused requests, because anyone can send these.
const linesPerSecond = 5

// Options configure a [Server].
type Options struct {
	// Hosts are names of the server, beside those of the loopback device. Origins are pages
	// that may call it, beside pages that this machine serves to itself.
	Hosts, Origins []string
	// Authenticator identifies the sender of a request.
	Authenticator principal.Authenticator
	// Resource is this server's URL in access tokens, and Metadata tells clients about the
	// authorization server (RFC 9728). Both are empty without OAuth.
	Resource string
	Metadata http.Handler
	// Book has the accounts of principals.
	Book *account.Book
	// IsReady reports whether the server has an environment.
	IsReady func() bool
	// LameDuck is the time between a failing /readyz and the end of service, unless nobody asks for it. DrainTimeout is
	// how long calls may then take.
	LameDuck, DrainTimeout time.Duration
	// HandsOver says that the listener's queue outlives this server: connections that come
	// while it ends wait there for the next server.
	HandsOver bool
	// Ending is called when a drain begins. It may be nil.
	Ending func()
	// Observe is called after each response. It may be nil.
	Observe func(Request)
	Log     *slog.Logger
}

// Request is a request that has been answered.
type Request struct {
	Principal string // empty if the request was not authenticated
	// Method is that of the message, or of the HTTP request if it has no message.
	Method string
	// Era is "modern" for stateless MCP, and "legacy" for earlier ones.
	Era    string
	Status int // of the response; 499 if the client did not wait for it
}

// Server serves HTTP clients.
type Server struct {
	handler  *rpc.Handler
	o        Options
	http     *http.Server
	sessions *sessions
	listener *boundedListener
	accepted chan struct{} // closed when the listener is, and no further connection comes

	answers *account.Pool // that wait until they can be charged

	// ctx ends with the server, streams when the streams are to end.
	ctx         context.Context
	cancel      context.CancelFunc
	streams     context.Context
	endStream   context.CancelFunc
	refusals    *rate.Limiter // lines of the log about requests that are refused
	unlogged    atomic.Int64  // refusals since the last such line
	isLame      atomic.Bool
	isWatched   atomic.Bool // somebody has asked for /readyz
	isReturning atomic.Bool // memory will be returned

	mu        sync.Mutex
	isClosing bool
	exchanges int           // that are answered
	idle      chan struct{} // closed when isClosing and there are no exchanges
}

// New returns a server that answers with handler.
func New(handler *rpc.Handler, o Options) *Server {
	s := &Server{
		handler:  handler,
		o:        o,
		sessions: newSessions(),
		answers:  account.NewPool(waitingAnswers),
		refusals: rate.NewLimiter(linesPerSecond, linesPerSecond),
		idle:     make(chan struct{}),
		accepted: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.streams, s.endStream = context.WithCancel(s.ctx)
	mux := http.NewServeMux()
	mux.HandleFunc(Path, s.serve)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { local.WriteState(w, true, "the server runs") })
	mux.HandleFunc("GET /readyz", s.ready)
	metadata, _ := url.Parse(MetadataURL(o.Resource))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		// A proxy may serve this resource at another path than Path, and passes on what clients ask for.
		if o.Metadata != nil && (r.URL.Path == wellKnown || r.URL.Path == wellKnown+Path || metadata != nil && r.URL.Path == metadata.Path) {
			o.Metadata.ServeHTTP(w, r)
			return
		}
		http.Error(w, "there is nothing here: MCP is served at "+Path, http.StatusNotFound)
	})
	s.http = &http.Server{
		Handler:           withRequest(mux),
		ReadHeaderTimeout: headTimeout,
		IdleTimeout:       connectionIdle,
		MaxHeaderBytes:    maxHead,
		ConnContext:       withConn,
		ConnState:         noteState,
		// Broken connections are the clients' affair.
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve serves the clients of a listener until [Server.Close].
func (s *Server) Serve(listener net.Listener) error {
	s.mu.Lock()
	s.listener = bounded(listener, maxConnections)
	s.mu.Unlock()
	defer close(s.accepted)
	err := s.http.Serve(s.listener)
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// ready says whether the server takes further calls.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	s.isWatched.Store(true)
	switch {
	case s.isLame.Load():
		local.WriteState(w, false, "the server is ending")
	case s.o.IsReady != nil && !s.o.IsReady():
		local.WriteState(w, false, "the server has no environment yet")
	default:
		local.WriteState(w, true, "the server takes calls")
	}
}

// Drain makes /readyz fail. After LameDuck, if anyone has ever asked for /readyz, it ends the streams, refuses further requests and
// waits for running calls, until DrainTimeout is over or ctx ends.
func (s *Server) Drain(ctx context.Context) {
	s.isLame.Store(true)
	if s.o.Ending != nil {
		s.o.Ending()
	}
	// Clients that connect again reach a server that has not begun to end.
	s.http.SetKeepAlivesEnabled(false)
	// Who asked reads the answer within that time, and leads clients elsewhere.
	if s.isWatched.Load() {
		sleep(ctx, s.o.LameDuck)
	}
	s.mu.Lock()
	s.isClosing = true
	if s.exchanges == 0 {
		close(s.idle)
	}
	if s.o.HandsOver && s.listener != nil {
		s.listener.Close()
	}
	s.mu.Unlock()
	s.endStream()
	timeout := time.NewTimer(s.o.DrainTimeout)
	defer timeout.Stop()
	select {
	case <-s.idle:
	case <-timeout.C:
	case <-ctx.Done():
	}
}

// sleep returns when d is over or ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Close cancels the running calls, waits at most for within until they are answered, and
// closes all connections. It follows [Server.Drain].
func (s *Server) Close(within time.Duration) {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	s.mu.Lock()
	listener := s.listener
	s.mu.Unlock()
	// Shutdown closes a connection even if its request has just been read, and misses a
	// connection that has just been accepted.
	if listener != nil {
		listener.Close()
		select {
		case <-s.accepted:
		case <-ctx.Done():
		}
		listener.awaitNew(ctx)
	}
	// Shutdown also waits until the answers are written.
	if s.http.Shutdown(ctx) != nil {
		s.http.Close()
	}
}

// returnMemory returns freed memory to the machine. Go's runtime would keep it for minutes.
func (s *Server) returnMemory() {
	if s.isReturning.CompareAndSwap(false, true) {
		time.AfterFunc(returnDelay, func() {
			s.isReturning.Store(false)
			debug.FreeOSMemory()
		})
	}
}

// enter counts an exchange, or returns false if the server is ending.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosing {
		return false
	}
	s.exchanges++
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exchanges--; s.exchanges == 0 && s.isClosing {
		close(s.idle)
	}
	s.returnMemory()
}

// Package mcphttp serves MCP over Streamable HTTP, at one path: the revision 2026-07-28,
// in which every request stands for itself, and those from 2025-03-26 to 2025-11-25,
// whose clients begin with initialize and name an HTTP session from then on.
//
// It promises that what belongs to a request comes in that request's own response and
// nowhere else; that an HTTP session is worth nothing to another principal than the one
// that began it; that a client which does not read, or is gone, delays nobody else;
// and that memory is bounded whatever clients send.
//
// What mcp-go has for this is not used: its transport delivers notifications of one
// request in the response of another, and lets the cancellation of a request reach
// another client's.
package mcphttp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

// Path is where MCP is served. /healthz and /readyz stand beside it.
const Path = "/mcp"

// Bounds of what clients send, in bytes.
const (
	maxHead = 32 << 10
	maxBody = 16 << 20
	// firstPiece is how much of a message is read before it is charged as a whole.
	firstPiece = 64 << 10
)

const (
	// maxConnections bounds the open connections. Further ones take the place of idle ones.
	// If there are none, probeConnections more are accepted for /healthz and /readyz alone.
	maxConnections   = account.MaxRequests
	probeConnections = 32
)

// waitingAnswers says how principals share the memory of answers that cannot be charged
// yet, because clients have not read others.
var waitingAnswers = account.Terms{Total: 48 << 20, Least: 1 << 20, Reserve: 16 << 20}

// Bounds of the time that clients take.
const (
	headTimeout = 10 * time.Second
	bodyTimeout = 30 * time.Second
	// restTimeout is how long the rest of a request that is refused may take to come.
	restTimeout = time.Second
	// bodyWait is how long a message waits until its principal may have the memory for it,
	// and answerWait how long an answer does: longer if the principal itself holds nothing.
	bodyWait         = 10 * time.Second
	answerWait       = time.Second
	othersAnswerWait = time.Minute
	// connectionIdle is how long a connection stays open without a request.
	connectionIdle = 2 * time.Minute
	// writeTimeout is how long a client may take to read a piece of a response, and
	// slowestRead how many bytes a second it must read of a long one, after that time.
	writeTimeout = 10 * time.Second
	slowestRead  = 256 << 10
)

const (
	// returnExchanges is how many exchanges must have ended for their memory to be
	// returned. That, and the memory of large messages, is returned after returnDelay,
	// and at most every returnEvery: it takes milliseconds of a processor.
	returnExchanges = 64
	returnDelay     = 2 * time.Second
	returnEvery     = 10 * time.Second
)

const (
	// firstComment is after what time the answer of a call becomes a stream, because
	// it has not come. commentEvery is the time between comments on a stream: proxies
	// close connections on which nothing comes for a minute.
	firstComment = 10 * time.Second
	commentEvery = 15 * time.Second
)

// linesPerSecond is how many lines the log has of requests that are refused: anybody can
// send such requests.
const linesPerSecond = 5

// Options are what a server is made of.
type Options struct {
	// Hosts are the names under which clients reach the server, besides those of the
	// loopback device. Origins are the pages that may call it, besides those that the
	// same machine serves to itself.
	Hosts, Origins []string
	// Authenticator finds out who sends a request.
	Authenticator principal.Authenticator
	// Resource is the URL of this server as authorization servers know it, and
	// Metadata what it tells clients of them (RFC 9728). Both are empty without.
	Resource string
	Metadata http.Handler
	// Book has the accounts of principals.
	Book *account.Book
	// IsReady says whether the server has anything to offer.
	IsReady func() bool
	// LameDuck is how long the server goes on as before, but for /readyz, when it is
	// about to end. DrainTimeout is how long calls may then take.
	LameDuck, DrainTimeout time.Duration
	// HandsOver says that another server will take the connections that come while
	// this one ends: they wait in the listener's queue, which somebody keeps open.
	HandsOver bool
	// Ending is called when a drain begins. It may be nil.
	Ending func()
	// Observe is called for each request when its response has been written. It may
	// be nil.
	Observe func(Request)
	Log     *slog.Logger
}

// Request is a request that has been answered.
type Request struct {
	Principal string // empty where nobody vouched for one
	// Method is that of the message, or of the HTTP request where that is none.
	Method string
	// Era is "modern" for the revision without a handshake, "legacy" for those before.
	Era      string
	Status   int // of the response; 499 where the client did not wait for it
	Duration time.Duration
}

// Server serves HTTP clients.
type Server struct {
	handler  *rpc.Handler
	o        Options
	http     *http.Server
	sessions *sessions
	listener *boundedListener
	accepted chan struct{} // closed when the listener is, and no further connection comes

	answers  *account.Pool // that wait until they can be charged
	encoding chan struct{} // contains an element for each answer that is encoded

	// ctx ends with the server, streams when the streams are to end.
	ctx       context.Context
	cancel    context.CancelFunc
	streams   context.Context
	endStream context.CancelFunc
	ids       atomic.Uint64
	refusals  *rate.Limiter // lines of the log about requests that are refused
	unlogged  atomic.Int64  // refusals since the last such line
	isLame    atomic.Bool
	// returned is when memory was returned last, in nanoseconds; isReturning says that
	// it will be.
	returned    atomic.Int64
	isReturning atomic.Bool

	mu        sync.Mutex
	isClosing bool
	exchanges int           // that are answered
	most      int           // exchanges at a time, since memory was last to be returned
	idle      chan struct{} // closed when isClosing and there are no exchanges
}

// New returns a server of what handler answers.
func New(handler *rpc.Handler, o Options) *Server {
	s := &Server{
		handler:  handler,
		o:        o,
		sessions: newSessions(),
		answers:  account.NewPool(waitingAnswers),
		encoding: make(chan struct{}, runtime.GOMAXPROCS(0)),
		refusals: rate.NewLimiter(linesPerSecond, linesPerSecond),
		idle:     make(chan struct{}),
		accepted: make(chan struct{}),
	}
	o.Book.Bytes.Drained = s.returnMemory
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.streams, s.endStream = context.WithCancel(s.ctx)
	mux := http.NewServeMux()
	mux.HandleFunc(Path, s.serve)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeState(w, true, "the server runs\n") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there is nothing here: MCP is served at "+Path, http.StatusNotFound)
	})
	if o.Metadata != nil {
		mux.Handle("/.well-known/oauth-protected-resource", o.Metadata)
		mux.Handle("/.well-known/oauth-protected-resource"+Path, o.Metadata)
	}
	s.http = &http.Server{
		Handler:           mux,
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

// Serve answers what comes to the listener, until [Server.Close].
func (s *Server) Serve(listener net.Listener) error {
	s.mu.Lock()
	s.listener = bounded(listener, maxConnections, probeConnections)
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
	switch {
	case s.isLame.Load():
		writeState(w, false, "the server is ending\n")
	case s.o.IsReady != nil && !s.o.IsReady():
		writeState(w, false, "the server has no environment yet\n")
	default:
		writeState(w, true, "the server takes calls\n")
	}
}

func writeState(w http.ResponseWriter, isGood bool, text string) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !isGood {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(text)) // to a client that may have gone
}

// Drain has /readyz say that the server ends, and after LameDuck ends the streams,
// refuses what comes, and waits for the calls that run: until all are answered, until
// DrainTimeout is over, or until ctx ends.
func (s *Server) Drain(ctx context.Context) {
	s.isLame.Store(true)
	if s.o.Ending != nil {
		s.o.Ending()
	}
	// Clients that connect again reach a server that has not begun to end.
	s.http.SetKeepAlivesEnabled(false)
	sleep(ctx, s.o.LameDuck)
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

// Close ends what runs, waits until it is answered, at most for within, and then closes
// all connections. It follows [Server.Drain].
func (s *Server) Close(within time.Duration) {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	s.mu.Lock()
	listener := s.listener
	s.mu.Unlock()
	// Once Shutdown is called, net/http closes a connection whose request it has just read,
	// and does not know of one that is just accepted.
	if listener != nil {
		listener.Close()
		select {
		case <-s.accepted:
		case <-ctx.Done():
		}
		listener.settle(ctx)
	}
	// Shutdown also waits for what has been answered to be written.
	if s.http.Shutdown(ctx) != nil {
		s.http.Close()
	}
}

// returnMemory gives to the machine what large messages and answers took, or many
// exchanges. The runtime of Go keeps memory for minutes.
func (s *Server) returnMemory() {
	// One return that is still to come is enough.
	if !s.isReturning.CompareAndSwap(false, true) {
		return
	}
	earliest := time.Unix(0, s.returned.Load()).Add(returnEvery)
	time.AfterFunc(max(returnDelay, time.Until(earliest)), func() {
		s.returned.Store(time.Now().UnixNano())
		s.isReturning.Store(false)
		debug.FreeOSMemory()
	})
}

// enter counts an exchange. It is false when no further one may begin.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosing {
		return false
	}
	s.exchanges++
	s.most = max(s.most, s.exchanges)
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exchanges--; s.exchanges == 0 && s.isClosing {
		close(s.idle)
	}
	// Each exchange takes tens of kilobytes, most of them the stacks of its goroutines.
	if s.most-s.exchanges >= returnExchanges {
		s.most = s.exchanges
		s.returnMemory()
	}
}

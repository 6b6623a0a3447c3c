package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostname"
)

const (
	// maxRequestHeader and maxResponseHeader bound the headers of one message, in
	// bytes.
	maxRequestHeader  = 64 << 10
	maxResponseHeader = 64 << 10
	// smallHead is how much of a request's head each connection may have in memory, in bytes, and
	// largeHeads how many requests may have more at a time: 1,000 heads of 50 KB took 214 MB.
	smallHead  = 8 << 10
	largeHeads = 128
	// idleRequests is how long a connection waits for its next request.
	idleRequests = time.Minute
)

// refusedHeader names the reason of a refusal in its response.
const refusedHeader = "X-Sandbox-Refused"

// startHTTP starts the server of plain HTTP. Requests are parsed by net/http and
// written anew to a connection of their own, so that no byte of a request that
// it did not understand reaches a host.
func (r *Relay) startHTTP() {
	discard := log.New(io.Discard, "", 0)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	r.proxy = &httputil.ReverseProxy{
		Transport: roundTripper(func(q *http.Request) (*http.Response, error) {
			c := connectionOf(q)
			c.http.head.reset()
			return c.transport().RoundTrip(q)
		}),
		FlushInterval: -1,
		ErrorLog:      discard,
		Rewrite:       rewrite,
		ErrorHandler:  failed,
	}
	r.server = &http.Server{
		Handler:           http.HandlerFunc(r.serveRequest),
		ReadHeaderTimeout: r.times.hello,
		IdleTimeout:       idleRequests,
		MaxHeaderBytes:    maxRequestHeader,
		ErrorLog:          discard,
		Protocols:         &protocols,
		// OPTIONS * is for the host, and not for this server.
		DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, conn.(*httpConn).c)
		},
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateActive || state == http.StateIdle {
				conn.(*httpConn).c.http.understood.Store(false)
				conn.(*httpConn).c.http.asked.Store(0)
			}
		},
	}
	go func() { _ = r.server.Serve(handoff(r.handoff)) }()
}

type connectionKey struct{}

func connectionOf(q *http.Request) *connection {
	return q.Context().Value(connectionKey{}).(*connection)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// handoff is the listener of the HTTP server: connections that were accepted and
// counted.
type handoff chan net.Conn

func (h handoff) Accept() (net.Conn, error) { return <-h, nil }
func (h handoff) Close() error              { return nil }
func (h handoff) Addr() net.Addr            { return &net.TCPAddr{} }

// httpState is the state that HTTP adds to a connection.
type httpState struct {
	// understood says that the current request was parsed.
	understood atomic.Bool
	timer      *time.Timer
	head       head // of the current response
	// asked is how many bytes of the current request's head came, and isLarge says that it has one of
	// the places for large ones.
	asked   atomic.Int64
	isLarge atomic.Bool

	mu       sync.Mutex
	upstream *http.Transport
}

// serveHTTP gives a connection to the HTTP server, which closes it. conn is the
// client itself, or TLS over it.
func (c *connection) serveHTTP(conn net.Conn) {
	c.http = &httpState{}
	client := &httpConn{Conn: conn, c: c}
	c.http.timer = time.AfterFunc(c.r.times.idle, func() { client.Close() })
	c.r.handoff <- client
}

// httpConn is the client's end of a connection with HTTP. It shows net/http no
// other methods of the connection in it: their bytes would not count as activity.
type httpConn struct {
	net.Conn
	c      *connection
	closed sync.Once
}

func (h *httpConn) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	h.c.http.awake(h.c, n)
	if !h.c.http.understood.Load() && h.c.http.asked.Add(int64(n)) > smallHead && !h.c.enlarge() {
		h.Close()
		return 0, errManyHeads
	}
	return n, err
}

var errManyHeads = errors.New("too many requests have large heads")

// enlarge takes a place for a large head, and reports whether there was one.
func (c *connection) enlarge() bool {
	if c.http.isLarge.Load() {
		return true
	}
	select {
	case c.r.large <- struct{}{}:
		c.http.isLarge.Store(true)
		return true
	default:
		return false
	}
}

// shrink gives the place back when the request has been answered.
func (c *connection) shrink() {
	if c.http.isLarge.CompareAndSwap(true, false) {
		<-c.r.large
	}
}

// Write reports a request that net/http refuses by itself, because it is not HTTP.
func (h *httpConn) Write(b []byte) (int, error) {
	if !h.c.http.understood.Swap(true) {
		refused := h.c.refusal()
		if refused == nil {
			e := h.c.because(event.ByNotHTTP)
			refused = &e
		}
		h.c.r.report(*refused)
	}
	n, err := h.Conn.Write(b)
	h.c.http.awake(h.c, n)
	return n, err
}

func (h *httpConn) Close() error {
	err := h.Conn.Close()
	h.closed.Do(func() {
		state := h.c.http
		state.timer.Stop()
		h.c.shrink()
		state.mu.Lock()
		if state.upstream != nil {
			state.upstream.CloseIdleConnections()
		}
		state.mu.Unlock()
		h.c.finish()
	})
	return err
}

// awake starts the time again within which bytes have to come.
func (s *httpState) awake(c *connection, n int) {
	if n > 0 {
		s.timer.Reset(c.r.times.idle)
	}
}

// serveRequest checks and answers one request of a connection.
func (r *Relay) serveRequest(w http.ResponseWriter, q *http.Request) {
	c := connectionOf(q)
	c.http.understood.Store(true)
	defer c.shrink()
	refused := c.refusal()
	if refused == nil {
		refused = c.refuses(q)
	}
	if refused != nil {
		r.report(*refused)
		w.Header().Set(refusedHeader, string(refused.Reason))
		answer(w, http.StatusForbidden, refused.Sentence())
		return
	}
	r.proxy.ServeHTTP(w, q)
}

// refuses returns the event that refuses a request, or nil if it may pass.
func (c *connection) refuses(q *http.Request) *event.Event {
	var reason event.Reason
	path, _, _ := strings.Cut(q.RequestURI, "?")
	switch {
	case !c.isFor(q):
		reason = event.ByHost
	case !c.r.policy.AllowsMethod(c.name, q.Method), c.r.policy.HasRule(c.name) && has(q, otherMethod):
		reason = event.ByMethod
	case !c.r.policy.AllowsPath(c.name, path), c.r.policy.HasRule(c.name) && has(q, otherPath):
		reason = event.ByPath
	case c.returnsSecret(q.Method):
		e := c.because(event.ByMethod)
		return &e
	case c.r.hasPlaceholder(c, q):
		reason = event.ByCredential
	default:
		return nil
	}
	e := c.because(reason)
	switch reason {
	case event.ByMethod:
		e.Option, e.Value, e.Detail = event.OptionRules, c.name, event.Detail(q.Method)
	case event.ByPath:
		e.Option, e.Value, e.Detail = event.OptionRules, c.name, event.Detail(path)
	}
	return &e
}

// Fields, in lower case, by which a client asks some servers to treat a request as if it had
// another method or path.
var (
	otherMethod = []string{"x-http-method-override", "x-http-method", "x-method-override"}
	otherPath   = []string{"x-original-url", "x-rewrite-url", "x-original-uri"}
)

// has reports whether the header of a request contains one of these fields. CGI and its like give
// programs "-" and "_" in a name as the same character (RFC 3875, section 4.1.18).
func has(q *http.Request, fields []string) bool {
	for name := range q.Header {
		if slices.Contains(fields, strings.ReplaceAll(strings.ToLower(name), "_", "-")) {
			return true
		}
	}
	return false
}

// isFor returns whether a request is for the connection's host: in the usual
// form, and for no other name.
func (c *connection) isFor(q *http.Request) bool {
	path := strings.HasPrefix(q.RequestURI, "/") && q.Method != http.MethodConnect
	if !path && (q.RequestURI != "*" || q.Method != http.MethodOptions) {
		return false // it is for a proxy
	}
	host := strings.TrimSuffix(q.Host, ":"+strconv.Itoa(int(c.asked.Port())))
	name, err := hostname.Canonical(host)
	return err == nil && name == c.name
}

// answer sends a sentence, after which the connection ends.
func answer(w http.ResponseWriter, status int, sentence string) {
	w.Header().Set("Connection", "close")
	http.Error(w, sentence, status)
}

// rewrite makes the request to the host out of the sandbox's. The request line
// and the header stay as they are, except that Host has the canonical name and
// that fields for one connection are taken out.
func rewrite(p *httputil.ProxyRequest) {
	c := connectionOf(p.In)
	// The path stays as it was written, in forms that a URL could not represent. A path that begins
	// with two slashes would be a host there, so it stays a URL.
	path, query, _ := strings.Cut(p.In.RequestURI, "?")
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", c.name, c.name
	if c.isTLS() {
		p.Out.URL.Scheme = "https"
	}
	switch {
	case c.r.policy.Upstream != "" && !c.isTLS():
		// "*" would become a part of the name.
		p.Out.URL.Opaque = "//" + c.name + strings.TrimPrefix(path, "*")
	case !strings.HasPrefix(path, "//"):
		p.Out.URL.Opaque = path
	}
	p.Out.URL.RawQuery = query
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = values
		}
	}
	// A proxy may drop the trailer (RFC 9110, section 6.5.1), and these fields are not checked
	// anywhere.
	p.Out.Trailer = nil
	// Requests after another upgrade, such as h2c, would not be checked.
	if !strings.EqualFold(p.Out.Header.Get("Upgrade"), "websocket") {
		p.Out.Header.Del("Upgrade")
		p.Out.Header.Del("Connection")
	}
	if c.isTLS() {
		c.r.addSecrets(c.name, p.Out.Header)
	}
}

// failed answers a request if its host could not be reached.
func failed(w http.ResponseWriter, q *http.Request, err error) {
	c := connectionOf(q)
	if q.Context().Err() != nil {
		return // the client has gone
	}
	e := c.explain(err)
	c.r.report(e)
	status := http.StatusBadGateway
	if e.Kind == event.Refused {
		status = http.StatusForbidden
		w.Header().Set(refusedHeader, string(e.Reason))
	}
	answer(w, status, e.Sentence())
}

// transport returns the connection's own way to its host: a connection of the
// sandbox has at most one to the host, which ends with it.
func (c *connection) transport() *http.Transport {
	c.http.mu.Lock()
	defer c.http.mu.Unlock()
	if c.http.upstream != nil {
		return c.http.upstream
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	t := &http.Transport{
		DisableCompression:     true,
		MaxConnsPerHost:        1,
		MaxResponseHeaderBytes: maxResponseHeader,
		IdleConnTimeout:        idleRequests,
		Protocols:              &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			server, err := c.dialHTTP(ctx)
			if err != nil {
				return nil, err
			}
			return headConn{server, &c.http.head}, nil
		},
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			server, err := c.dialHTTP(ctx)
			if err != nil {
				return nil, err
			}
			conn := tls.Client(server, &tls.Config{ServerName: c.name, RootCAs: c.r.roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
			ctx, cancel := context.WithTimeout(ctx, c.r.times.dial)
			defer cancel()
			if err := conn.HandshakeContext(ctx); err != nil {
				server.Close()
				return nil, err
			}
			return headConn{conn, &c.http.head}, nil
		},
	}
	if c.r.policy.Upstream != "" && !c.isTLS() {
		t.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: c.r.policy.Upstream})
	}
	c.http.upstream = t
	return t
}

// dialHTTP connects to the host, or to the upstream proxy.
func (c *connection) dialHTTP(ctx context.Context) (*serverConn, error) {
	var server *net.TCPConn
	var err error
	if c.r.policy.Upstream != "" && !c.isTLS() {
		server, err = c.r.upstream(ctx)
	} else {
		server, err = c.r.dial(ctx, c.name, c.asked.Port())
	}
	if err != nil {
		return nil, err
	}
	bounded(server, 2*c.r.times.idle)
	c.dialled(server)
	return &serverConn{TCPConn: server, c: c}, nil
}

// errExceeded ends a connection because its sandbox has used up its bytes.
var errExceeded = errors.New("the sandbox has used up its megabytes")

// serverConn is the host's end of a connection with HTTP, and counts its bytes.
type serverConn struct {
	*net.TCPConn
	c *connection
}

func (s *serverConn) Read(b []byte) (int, error) {
	n, err := s.TCPConn.Read(b)
	return n, s.counted(n, err, &s.c.down)
}

func (s *serverConn) Write(b []byte) (int, error) {
	n, err := s.TCPConn.Write(b)
	return n, s.counted(n, err, &s.c.up)
}

// ReadFrom hides the method of the TCP connection, which would bypass the count of bytes.
func (s *serverConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{s}, r)
}

func (s *serverConn) counted(n int, err error, count *atomic.Int64) error {
	s.c.http.awake(s.c, n)
	if !s.c.count(int64(n), count) {
		reset(s.TCPConn)
		reset(s.c.client)
		return errExceeded
	}
	return err
}

package live

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/status"
)

const metricsPath = "/metrics"

const (
	headTimeout  = 10 * time.Second
	writeTimeout = 10 * time.Second
	idleTimeout  = 2 * time.Minute
	maxHead      = 16 << 10
	// maxConnections bounds the open connections, with the open pages.
	maxConnections = 64
)

// Site shows a server at an address of its own.
type Site struct {
	Server *Server
	// Metrics answers /metrics.
	Metrics http.Handler
	// IsReady says whether the server takes calls.
	IsReady func() bool
	// Page adds the page, with the code and the output of calls.
	Page bool
	Log  *slog.Logger
}

// IsPrivate reports whether an address can be reached by this machine alone. At any other
// one there are only metrics, without single calls.
func IsPrivate(address net.Addr) bool {
	if address.Network() == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(address.String())
	return err == nil && isLoopback(host)
}

// Serve serves the clients of a listener until ctx ends.
func (s *Site) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           s.handler(ctx, IsPrivate(listener.Addr())),
		ReadHeaderTimeout: headTimeout,
		ReadTimeout:       headTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHead,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(&boundedListener{Listener: listener, open: make(chan struct{}, maxConnections)})
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Site) handler(ctx context.Context, private bool) http.Handler {
	mux := http.NewServeMux()
	metrics := withDeadline(s.Metrics.ServeHTTP)
	if private {
		// They name principals, and when they call.
		mux.Handle("GET "+metricsPath, toThisHost(metrics))
	} else {
		mux.Handle("GET "+metricsPath, metrics)
	}
	mux.Handle("GET /healthz", withDeadline(func(w http.ResponseWriter, _ *http.Request) { state(w, true, "the server runs\n") }))
	mux.Handle("GET /readyz", withDeadline(func(w http.ResponseWriter, _ *http.Request) {
		if s.IsReady() {
			state(w, true, "the server takes calls\n")
		} else {
			state(w, false, "the server is ending, or has no environment yet\n")
		}
	}))
	if private {
		mux.Handle("GET "+status.Path, toThisHost(withDeadline(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(s.Server.Now()) // to a client that may have gone
		})))
		if s.Page {
			s.addPage(ctx, mux)
		}
	}
	return mux
}

// withDeadline bounds how long an answer may take to be written.
func withDeadline(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		handle(w, r)
	}
}

// toThisHost refuses requests under a name that is not this machine's: a page elsewhere
// can have a browser on this machine send such ones (DNS rebinding). It also refuses what
// another page asks for.
func toThisHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		isUnix := local != nil && local.Network() == "unix"
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		site := r.Header.Get("Sec-Fetch-Site")
		if !isUnix && !isLoopback(host) || site != "" && site != "same-origin" && site != "none" {
			http.Error(w, "this address is for this machine alone: use http://localhost or http://127.0.0.1", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && address.IsLoopback()
}

func state(w http.ResponseWriter, isGood bool, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !isGood {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(text)) // to a client that may have gone
}

// boundedListener is a listener that closes connections beyond a bound.
type boundedListener struct {
	net.Listener
	open chan struct{}
}

func (b *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case b.open <- struct{}{}:
			return &boundedConn{Conn: conn, release: b.open}, nil
		default:
			conn.Close()
		}
	}
}

type boundedConn struct {
	net.Conn
	release chan struct{}
	once    sync.Once
}

func (c *boundedConn) Close() error {
	c.once.Do(func() { <-c.release })
	return c.Conn.Close()
}

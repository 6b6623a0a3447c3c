// Package live shows the operator what a server does, at an address of its own: metrics, and JSON for
// commands.
//
// It promises that it delays no call, and that viewers cannot change the server.
package live

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/local"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
)

const metricsPath = "/metrics"

const (
	headTimeout  = 10 * time.Second
	writeTimeout = 10 * time.Second
	idleTimeout  = 2 * time.Minute
	maxHead      = 16 << 10
	// maxConnections bounds the open connections.
	maxConnections = 64
)

// Site shows a server at an address of its own.
type Site struct {
	Server *watch.Server
	// Metrics answers /metrics.
	Metrics http.Handler
	// IsReady says whether the server takes calls.
	IsReady func() bool
	Log     *slog.Logger
}

// IsPrivate reports whether an address can be reached by this machine alone. At any other
// one there are only metrics, without single calls.
func IsPrivate(address net.Addr) bool {
	if address.Network() == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(address.String())
	return err == nil && local.IsLoopback(host)
}

// Serve serves the clients of a listener until ctx ends.
func (s *Site) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           s.handler(IsPrivate(listener.Addr())),
		ReadHeaderTimeout: headTimeout,
		ReadTimeout:       headTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHead,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	local.Bound(server, maxConnections)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Site) handler(private bool) http.Handler {
	mux := http.NewServeMux()
	metrics := withDeadline(s.Metrics.ServeHTTP)
	if private {
		// They name principals, and when they call.
		mux.Handle("GET "+metricsPath, toThisHost(metrics))
	} else {
		mux.Handle("GET "+metricsPath, metrics)
	}
	mux.Handle("GET /healthz", withDeadline(func(w http.ResponseWriter, _ *http.Request) { local.WriteState(w, true, "the server runs") }))
	mux.Handle("GET /readyz", withDeadline(func(w http.ResponseWriter, _ *http.Request) {
		if s.IsReady() {
			local.WriteState(w, true, "the server takes calls")
		} else {
			local.WriteState(w, false, "the server is ending, or has no environment yet")
		}
	}))
	if private {
		mux.Handle("GET "+watch.Path, toThisHost(withDeadline(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(s.Server.Now()) // to a client that may have gone
		})))
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
		host, isUnix := local.Host(r)
		site := r.Header.Get("Sec-Fetch-Site")
		if !isUnix && !local.IsLoopback(host) || site != "" && site != "same-origin" && site != "none" {
			http.Error(w, "this address is for this machine alone: use http://localhost or http://127.0.0.1", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Package local is shared by the gateway's HTTP servers and the user's page: it tells whether a request
// is for this machine, bounds connections, and answers health checks.
package local

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
)

// IsLoopback reports whether only this machine reaches a host: a loopback address or localhost.
func IsLoopback(host string) bool {
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && address.IsLoopback()
}

// Host returns the host that a request is for, without its port. By DNS rebinding, a page can make a
// browser on this machine send requests to loopback addresses under another name. isUnix says that
// the request came by a Unix socket, which has no name, and which no page reaches.
func Host(r *http.Request) (host string, isUnix bool) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	host = r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(host, ".") // of a name that is absolute
	return host, local != nil && local.Network() == "unix"
}

// Bound closes connections of a server beyond a number of open ones.
func Bound(server *http.Server, most int64) {
	var open atomic.Int64
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > most {
				conn.Close()
			}
		case http.StateClosed:
			open.Add(-1)
		}
	}
}

// WriteState answers a health check with a line of text.
func WriteState(w http.ResponseWriter, isGood bool, text string) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !isGood {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(text + "\n")) // to a client that may have gone
}

package mcphttp

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// misdirected returns why a request is refused if it is for another host or from a page that
// may not call, or "" if it is fine. By DNS rebinding, a page can make a browser on this
// machine send requests to loopback addresses.
func (o *Options) misdirected(r *http.Request) string {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	// A Unix socket has no name, and no page reaches it.
	isUnix := local != nil && local.Network() == "unix"
	if !isUnix && !isLoopback(host) && !slices.ContainsFunc(o.Hosts, func(name string) bool { return strings.EqualFold(name, host) }) {
		return fmt.Sprintf("the request is for host %.80q, which is not among the server's hosts", host)
	}
	if origin := r.Header.Get("Origin"); origin != "" && !o.allowsOrigin(origin, host) {
		return fmt.Sprintf("the page's origin %.80q is not among the server's origins", origin)
	}
	return ""
}

// allowsOrigin reports whether a page of an origin may call the server under a name.
func (o *Options) allowsOrigin(origin, host string) bool {
	if slices.Contains(o.Origins, origin) {
		return true
	}
	page, err := url.Parse(origin)
	return err == nil && page.Host != "" && isLoopback(page.Hostname()) && isLoopback(host)
}

// isLoopback reports whether a host is a loopback address or localhost.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && address.IsLoopback()
}

// allowPage tells a browser that a page may read the response (CORS). The caller has checked
// the page's origin.
func allowPage(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", sessionHeader+", WWW-Authenticate")
}

// preflight answers a browser's preflight request, which has no token.
func preflight(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", "POST, GET, DELETE")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Accept, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name, Last-Event-ID")
	h.Set("Access-Control-Max-Age", "3600")
	w.WriteHeader(http.StatusNoContent)
}

package mcphttp

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/local"
)

// misdirected returns why a request is refused if it is for another host or from a page that
// may not call, or "" if it is fine.
func (o *Options) misdirected(r *http.Request) string {
	host, isUnix := local.Host(r)
	if !isUnix && !local.IsLoopback(host) && !slices.ContainsFunc(o.Hosts, func(name string) bool { return strings.EqualFold(name, host) }) {
		return fmt.Sprintf("the request is for host %.80q, which is not among the server's hosts: its operator adds it to NIX_SANDBOX_HOSTS, or to hosts of [serve]", host)
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
	return err == nil && page.Host != "" && local.IsLoopback(page.Hostname()) && local.IsLoopback(host)
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

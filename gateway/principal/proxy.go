package principal

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
)

// MaxName bounds the names that others give to principals, in bytes.
const MaxName = 128

// Proxy takes the principal from a header field that a reverse proxy sets. It refuses the field
// from other senders.
type Proxy struct {
	Header string
	// From are the addresses of the proxy. Unix says that it connects by a Unix
	// socket, which its permissions protect.
	From []netip.Prefix
	Unix bool
}

var _ Authenticator = (*Proxy)(nil)

// Authenticate implements [Authenticator]. Names begin with "proxy:".
func (p *Proxy) Authenticate(r *http.Request) (string, error) {
	values := r.Header.Values(p.Header)
	switch {
	case len(values) == 0:
		return "", ErrNone
	case !p.isProxy(r):
		return "", &Refusal{Reason: fmt.Sprintf("the request has %s, and does not come from the proxy", p.Header)}
	case len(values) > 1 || !IsPlain(values[0]):
		return "", &Refusal{Reason: fmt.Sprintf("%s is not one name of 1 to %d printed ASCII characters", p.Header, MaxName)}
	}
	return "proxy:" + values[0], nil
}

func (p *Proxy) isProxy(r *http.Request) bool {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		return p.Unix
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && slices.ContainsFunc(p.From, func(prefix netip.Prefix) bool { return prefix.Contains(from.Addr().Unmap()) })
}

// IsPlain reports whether a name can be written into a log as it is.
func IsPlain(name string) bool {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return name != "" && len(name) <= MaxName
}

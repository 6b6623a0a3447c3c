package principal

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func TestProxy_IsBelievedFromItsAddressAlone(t *testing.T) {
	tcp := context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{})
	unix := context.WithValue(t.Context(), http.LocalAddrContextKey, &net.UnixAddr{Net: "unix"})
	proxy := &Proxy{Header: "X-Remote-User", From: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	overUnix := &Proxy{Header: "X-Remote-User", Unix: true}
	for name, test := range map[string]struct {
		proxy  *Proxy
		ctx    context.Context
		from   string
		values []string
		want   string
		none   bool
	}{
		"from the proxy":           {proxy: proxy, ctx: tcp, from: "10.1.2.3:999", values: []string{"alice"}, want: "proxy:alice"},
		"from it, as IPv6 says it": {proxy: proxy, ctx: tcp, from: "[::ffff:10.1.2.3]:999", values: []string{"Alice Smith"}, want: "proxy:Alice Smith"},
		"from elsewhere":           {proxy: proxy, ctx: tcp, from: "10.2.2.3:999", values: []string{"alice"}},
		"from nowhere":             {proxy: proxy, ctx: tcp, from: "@", values: []string{"alice"}},
		"twice":                    {proxy: proxy, ctx: tcp, from: "10.1.2.3:999", values: []string{"alice", "bob"}},
		"empty":                    {proxy: proxy, ctx: tcp, from: "10.1.2.3:999", values: []string{""}},
		"not printed":              {proxy: proxy, ctx: tcp, from: "10.1.2.3:999", values: []string{"al\x7fice"}},
		"too long":                 {proxy: proxy, ctx: tcp, from: "10.1.2.3:999", values: []string{strings.Repeat("a", MaxName+1)}},
		"without":                  {proxy: proxy, ctx: tcp, from: "10.1.2.3:999", none: true},
		"by a socket":              {proxy: overUnix, ctx: unix, from: "@", values: []string{"alice"}, want: "proxy:alice"},
		"by TCP for a socket":      {proxy: overUnix, ctx: tcp, from: "10.1.2.3:999", values: []string{"alice"}},
		"by a socket for TCP":      {proxy: proxy, ctx: unix, from: "10.1.2.3:999", values: []string{"alice"}},
	} {
		r := request().WithContext(test.ctx)
		r.RemoteAddr = test.from
		r.Header["X-Remote-User"] = test.values
		p, err := test.proxy.Authenticate(r)
		var refusal *Refusal
		if p != test.want || (err == nil) != (test.want != "") || errors.Is(err, ErrNone) != test.none || err != nil && !test.none && !errors.As(err, &refusal) {
			t.Errorf("%s: %v, %v, want %q", name, p, err, test.want)
		}
	}
}

package relay

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
)

// isTLS returns whether the connection's requests are read inside TLS.
func (c *connection) isTLS() bool {
	return c.asked.Port() == policy.PortHTTPS && c.r.policy.Reads(c.name)
}

// errNotTrusted is an alert of a client: most programs read the variables that
// name the sandbox's certificates, and some have certificates of their own.
const errNotTrusted = problem("the program does not trust the certificates of this sandbox (SSL_CERT_FILE)")

// readTLS ends TLS with the client and serves its requests. The client's first
// message is checked as for other hosts. Only HTTP/1.1 is offered, so that a
// connection has one host.
func (c *connection) readTLS() {
	hello, ok := c.hello(c.client)
	if !ok {
		c.finish()
		return
	}
	certificate, err := c.r.issuer.host(c.name)
	if err != nil {
		c.r.report(c.explain(problem("its certificate could not be made")))
		reset(c.client)
		c.finish()
		return
	}
	conn := tls.Server(&replay{TCPConn: c.client, first: hello}, &tls.Config{
		Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
	})
	_ = c.client.SetDeadline(time.Now().Add(c.r.times.hello))
	if err := conn.Handshake(); err != nil {
		var alert *net.OpError
		if errors.As(err, &alert) && alert.Op == "remote error" {
			c.r.report(c.explain(errNotTrusted))
		}
		c.finish()
		return
	}
	_ = c.client.SetDeadline(time.Time{})
	c.serveHTTP(conn)
}

// addSecrets replaces the placeholders in the header of a request with the secrets of its host.
func (r *Relay) addSecrets(host string, header http.Header) {
	for i := range r.policy.Credentials {
		if credential := &r.policy.Credentials[i]; credential.Domain == host {
			name, value := credential.Field(r.secrets[i])
			header.Set(name, value)
		}
	}
}

// returnsSecret reports whether the host would answer a request of this method with its secret:
// TRACE asks for the header back (RFC 9110, section 9.3.8), and TRACK was another name for it.
func (c *connection) returnsSecret(method string) bool {
	if !c.isTLS() || !strings.EqualFold(method, http.MethodTrace) && !strings.EqualFold(method, "TRACK") {
		return false
	}
	return slices.ContainsFunc(c.r.policy.Credentials, func(credential policy.Credential) bool { return credential.Domain == c.name })
}

// hasPlaceholder returns whether a request that does not get a secret has its
// placeholder in its line or header: the program in the sandbox believes that the
// host gets the secret. Most programs send a password in base64 (RFC 7617). The
// body and the fields after it are not searched.
func (r *Relay) hasPlaceholder(c *connection, q *http.Request) bool {
	texts := []string{q.Method, q.RequestURI}
	for name, values := range q.Header {
		texts = append(texts, values...)
		if name == "Authorization" || name == "Proxy-Authorization" {
			for _, value := range values {
				texts = append(texts, basicCredentials(value))
			}
		}
	}
	return slices.ContainsFunc(r.policy.Credentials, func(credential policy.Credential) bool {
		return credential.Placeholder != "" && (credential.Domain != c.name || !c.isTLS()) &&
			slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, credential.Placeholder) })
	})
}

// basicCredentials returns the user and the password in the value of a field, or "" if it contains
// none.
func basicCredentials(value string) string {
	scheme, encoded, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Basic") {
		return ""
	}
	text, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.Trim(encoded, " "), "="))
	if err != nil {
		return ""
	}
	return string(text)
}

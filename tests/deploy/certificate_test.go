package deploy_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := certificate("The authority of the tests")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	signed := must.Get(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	return &authority{must.Get(x509.ParseCertificate(signed))(t), key}
}

// certificate is what a certificate of this common name begins with.
func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

// sign returns a certificate, and this with its key in PEM.
func (a *authority) sign(t *testing.T, template *x509.Certificate) (tls.Certificate, []byte) {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	signed := must.Get(x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key))(t)
	encoded := must.Get(x509.MarshalPKCS8PrivateKey(key))(t)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})
	text = append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})...)
	return must.Get(tls.X509KeyPair(text, text))(t), text
}

// forServer signs the certificate of this machine, and returns the path of a PEM file.
func (a *authority) forServer(t *testing.T) string {
	t.Helper()
	template := certificate("localhost")
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	_, text := a.sign(t, template)
	path := filepath.Join(t.TempDir(), "server.pem")
	must.Do(t, os.WriteFile(path, text, 0o600))
	return path
}

// client returns a client that believes the authority, with these certificates of its
// own, over HTTP/2 or HTTP/1.1.
func (a *authority) client(t *testing.T, isHTTP2 bool, own ...tls.Certificate) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: own}, ForceAttemptHTTP2: isHTTP2}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// A client certificate that HAProxy has checked says who calls, whatever the client sends
// besides, and nothing else says so.
func TestHAProxy_SaysWhoHasACertificate(t *testing.T) {
	t.Parallel()
	server := undertest.Server(t)
	if _, err := exec.LookPath("haproxy"); err != nil {
		t.Skip("haproxy is not installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(5*time.Minute))
	defer cancel()
	ours, others := newAuthority(t), newAuthority(t)
	person := func(a *authority, name string) tls.Certificate {
		template := certificate(name)
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		signed, _ := a.sign(t, template)
		return signed
	}
	alice, bob := person(ours, "alice"), person(ours, "bob")

	// The servers believe HAProxy, which connects from an address of this machine.
	records := filepath.Join(t.TempDir(), "audit.jsonl")
	metadata := mcptest.MetadataWith(t, undertest.Environments(t), map[string]any{"serve": mcptest.Serve(map[string]any{
		"lame_duck_seconds": 0,
		"proxy":             map[string]any{"header": "X-Remote-User", "from": []string{"127.0.0.1/32"}},
		"audit_file":        records,
	})})
	w := &world{tokens: tokenFile(t)}
	for range 2 {
		cmd, log, address := serveAs(t, exec.Command(server, "serve", "--http", "127.0.0.1:0"), "NIX_SANDBOX_TOKENS="+w.tokens, "NIX_SANDBOX_METADATA="+metadata)
		w.servers, w.logs, w.addresses = append(w.servers, cmd), append(w.logs, log), append(w.addresses, address)
	}
	clients := filepath.Join(t.TempDir(), "clients.pem")
	must.Do(t, os.WriteFile(clients, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ours.certificate.Raw}), 0o600))
	front := w.proxy(t, ours.client(t, true), "https", "MCP_CERTIFICATE="+ours.forServer(t), "MCP_CLIENTS="+clients)
	url := "https://" + front + "/mcp"

	run := func(who *httpclient.Client, code string) string {
		t.Helper()
		must.Do(t, who.Initialize(ctx))
		answer := must.Get(who.Run(ctx, mcpclient.Arguments{Env: "bash", Code: code, Session: "s"}))(t)
		if answer.IsError {
			t.Errorf("%q", answer.Text())
		}
		return answer.Texts()[0]
	}
	for i, isHTTP2 := range []bool{true, false} {
		with := func(own tls.Certificate, header http.Header) *httpclient.Client {
			return &httpclient.Client{URL: url, Version: version(i), HTTP: ours.client(t, isHTTP2, own), Header: header}
		}
		response := must.Get(ours.client(t, isHTTP2, alice).Get("https://" + front + "/healthz"))(t)
		response.Body.Close()
		if (response.ProtoMajor == 2) != isHTTP2 {
			t.Errorf("HAProxy answers with %s", response.Proto)
		}
		run(with(alice, nil), "secret=alice")
		run(with(bob, nil), "secret=bob")
		if got := run(with(alice, nil), "echo $secret"); got != "alice\n" {
			t.Errorf("alice finds %q in her session", got)
		}
		// Neither a header nor a token outweighs the certificate.
		if got := run(with(bob, http.Header{"X-Remote-User": {"alice"}}), "echo $secret"); got != "bob\n" {
			t.Errorf("bob, who says that he is alice, finds %q", got)
		}
		withToken := with(bob, nil)
		withToken.Token = token(0)
		if got := run(withToken, "echo $secret"); got != "bob\n" {
			t.Errorf("bob, who has a token too, finds %q", got)
		}
		// Without a certificate there is the token.
		nobody := &httpclient.Client{URL: url, Version: version(i), HTTP: ours.client(t, isHTTP2), Header: http.Header{"X-Remote-User": {"alice"}}}
		var refused *httpclient.StatusError
		if err := nobody.Initialize(ctx); !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized {
			t.Errorf("a client without a certificate: %v, want status 401", err)
		}
		nobody.Token = token(i)
		if got := run(nobody, "echo [$secret]"); got != "[]\n" {
			t.Errorf("a client with a token finds %q", got)
		}
		// TLS ends for a certificate that another authority signed.
		if response, err := ours.client(t, isHTTP2, person(others, "alice")).Get("https://" + front + "/healthz"); err == nil {
			response.Body.Close()
			t.Errorf("a stranger's certificate: status %d", response.StatusCode)
		}
	}

	// Who goes around HAProxy is not believed, except from its own address.
	for from, want := range map[string]int{"127.0.0.1": http.StatusOK, "127.0.0.2": http.StatusUnauthorized} {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		direct := &httpclient.Client{
			URL: "http://" + w.addresses[0] + "/mcp", Version: mcpclient.Stateless, Header: http.Header{"X-Remote-User": {"alice"}},
			HTTP: &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}},
		}
		err := direct.Initialize(ctx)
		var refused *httpclient.StatusError
		if errors.As(err, &refused) != (want != http.StatusOK) || refused != nil && refused.Status != want {
			t.Errorf("from %s: %v, want status %d", from, err, want)
		}
	}

	who := map[string]int{}
	for line := range strings.Lines(string(must.Get(os.ReadFile(records))(t))) {
		var r audit.Record
		must.Do(t, json.Unmarshal([]byte(line), &r))
		who[r.Who]++
	}
	t.Logf("records of the audit log: %v", who)
	for name, want := range map[string]int{"proxy:alice": 4, "proxy:bob": 6, "principal-0": 1, "principal-1": 1} {
		if who[name] != want {
			t.Errorf("%d records are of %s, want %d", who[name], name, want)
		}
	}
}

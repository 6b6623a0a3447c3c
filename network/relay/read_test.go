package relay

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

// ruled are rules for one host, and a credential for the same.
const ruled = `{"domains":["files.example","other.example","a.host.example"],
"rules":{"files.example":{"methods":["GET","POST"],"paths":["/v1/*"]}},
"credentials":[{"name":"TOKEN","domain":"files.example","header":"Authorization: Bearer {}","placeholder":"placeholder-of-TOKEN"}]}`

// readClient is a client in the sandbox, which trusts the sandbox's authority
// and that of the tests.
func (s *sandbox) readClient() *http.Client {
	client := s.client()
	pool := authority().pool.Clone()
	if !pool.AppendCertsFromPEM(s.Certificate()) {
		s.t.Fatalf("the certificate is %q", s.Certificate())
	}
	client.Transport.(*http.Transport).TLSClientConfig.RootCAs = pool
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client
}

func (s *sandbox) do(client *http.Client, method, address string, header ...string) (status int, body string) {
	s.t.Helper()
	q := must.Get(http.NewRequestWithContext(s.t.Context(), method, address, nil))(s.t)
	for i := 0; i < len(header); i += 2 {
		q.Header.Add(header[i], header[i+1])
	}
	response, err := client.Do(q)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	return response.StatusCode, string(must.Get(io.ReadAll(response.Body))(s.t))
}

// basic returns the field in which a program sends a password.
func basic(password string) []string {
	return []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+password))}
}

// spy writes down the secrets that a server gets.
type spy struct {
	mu   sync.Mutex
	seen []string
}

func (s *spy) serve(w http.ResponseWriter, q *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, fmt.Sprint(q.Host, " ", q.RequestURI, " ", q.Header["Authorization"]))
	s.mu.Unlock()
	if q.URL.Path == "/v1/elsewhere" {
		http.Redirect(w, q, "https://other.example/", http.StatusFound)
		return
	}
	fmt.Fprint(w, "hello")
}

func (s *spy) got() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

func TestRead_AddsTheSecretForItsHostAlone(t *testing.T) {
	s := start(t, ruled)
	var secure, plain spy
	serveHTTP(t, server+":443", true, secure.serve)
	serveHTTP(t, server+":80", false, plain.serve)
	client := s.readClient()

	for _, header := range [][]string{nil, {"Authorization", "Bearer placeholder-of-TOKEN"}, {"authorization", "a", "Authorization", "b"}, basic("placeholder-of-TOKEN")} {
		if status, body := s.do(client, "GET", "https://files.example/v1/x?q=1", header...); status != 200 || body != "hello" {
			t.Errorf("%v: %d %s", header, status, body)
		}
	}
	want := "files.example /v1/x?q=1 [Bearer secret-of-TOKEN]"
	if diff := cmp.Diff([]string{want, want, want, want}, secure.got()); diff != "" {
		t.Error(diff)
	}

	// Another host of the same server gets what the sandbox sends, and is not read.
	if status, body := s.do(client, "GET", "https://other.example/x", "Authorization", "own"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if diff := cmp.Diff([]string{"other.example /x [own]"}, secure.got()); diff != "" {
		t.Error(diff)
	}
	// So does the same host without TLS.
	if status, body := s.do(client, "GET", "http://files.example/v1/x"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if diff := cmp.Diff([]string{"files.example /v1/x []"}, plain.got()); diff != "" {
		t.Error(diff)
	}
	// A redirect to elsewhere is the client's, and does not carry it.
	response := must.Get(client.Get("https://files.example/v1/elsewhere"))(t)
	response.Body.Close()
	if status, _ := s.do(client, "GET", response.Header.Get("Location")); status != 200 {
		t.Errorf("%d", status)
	}
	if diff := cmp.Diff([]string{"files.example /v1/elsewhere [Bearer secret-of-TOKEN]", "other.example / []"}, secure.got()); diff != "" {
		t.Error(diff)
	}
	if refused := s.refusals(); refused != nil {
		t.Errorf("%v", refused)
	}
}

func TestRead_RefusesWhatTheRuleDoesNotContain(t *testing.T) {
	s := start(t, ruled)
	var secure, plain spy
	serveHTTP(t, server+":443", true, secure.serve)
	serveHTTP(t, server+":80", false, plain.serve)
	client := s.readClient()
	rule := func(reason event.Reason, port uint16, detail string) event.Event {
		return event.Event{Name: "files.example", Port: port, Reason: reason, Option: "network.rules", Value: "files.example", Detail: detail}
	}
	for _, test := range []struct {
		method, address string
		header          []string
		want            event.Event
	}{
		{"DELETE", "https://files.example/v1/x", nil, rule(event.ByMethod, 443, "DELETE")},
		{"GET", "https://files.example/v2/x?q=1", nil, rule(event.ByPath, 443, "/v2/x")},
		{"GET", "https://files.example/v1/%2e%2e/v2", nil, rule(event.ByPath, 443, "")},
		{"GET", "http://files.example/v2/x", nil, rule(event.ByPath, 80, "/v2/x")},
		{"POST", "https://files.example/v1/x", []string{"X-HTTP-Method-Override", "DELETE"}, rule(event.ByMethod, 443, "POST")},
		{"GET", "https://files.example/v1/x", []string{"x-original-url", "/v2/x"}, rule(event.ByPath, 443, "/v1/x")},
		// Gateways such as CGI and WSGI take both spellings for one variable.
		{"POST", "https://files.example/v1/x", []string{"X_HTTP_Method_Override", "DELETE"}, rule(event.ByMethod, 443, "POST")},
		{"POST", "https://files.example/v1/x", []string{"x_method-override", "DELETE"}, rule(event.ByMethod, 443, "POST")},
		{"GET", "https://files.example/v1/x", []string{"X_Original_URL", "/v2/x"}, rule(event.ByPath, 443, "/v1/x")},
		{"GET", "http://a.host.example/?placeholder-of-TOKEN", nil, event.Event{Name: "a.host.example", Port: 80, Reason: event.ByCredential}},
		{"GET", "http://a.host.example/", []string{"X-Any", "Bearer placeholder-of-TOKEN"}, event.Event{Name: "a.host.example", Port: 80, Reason: event.ByCredential}},
		{"placeholder-of-TOKEN", "http://a.host.example/", nil, event.Event{Name: "a.host.example", Port: 80, Reason: event.ByCredential}},
		{"GET", "http://a.host.example/", basic("placeholder-of-TOKEN"), event.Event{Name: "a.host.example", Port: 80, Reason: event.ByCredential}},
		{"GET", "http://files.example/v1/", []string{"Authorization", "Bearer placeholder-of-TOKEN"}, event.Event{Name: "files.example", Port: 80, Reason: event.ByCredential}},
	} {
		what := test.method + " " + test.address
		if status, body := s.do(client, test.method, test.address, test.header...); status != 403 || !strings.Contains(body, "the sandbox's network refused") {
			t.Errorf("%s: %d %s", what, status, body)
		}
		s.wasRefused(what, test.want)
	}
	if seen := append(secure.got(), plain.got()...); len(seen) > 0 {
		t.Errorf("the hosts get %q", seen)
	}
}

// A server answers TRACE with the header that it got (RFC 9110, section 9.3.8), and
// the secret would be in the sandbox.
func TestRead_RefusesWhatWouldReturnTheSecret(t *testing.T) {
	s := start(t, `{"domains":["files.example"],
"credentials":[{"name":"TOKEN","domain":"files.example","header":"Authorization: Bearer {}","placeholder":""}]}`)
	echo := func(w http.ResponseWriter, q *http.Request) { _ = q.Write(w) }
	serveHTTP(t, server+":443", true, echo)
	serveHTTP(t, server+":80", false, echo)
	client := s.readClient()
	// The host is one that would return it.
	if status, body := s.do(client, "GET", "https://files.example/"); status != 200 || !strings.Contains(body, "secret-of-TOKEN") {
		t.Fatalf("%d %s", status, body)
	}
	for _, method := range []string{"TRACE", "TRACK"} {
		if status, body := s.do(client, method, "https://files.example/"); status != 403 || strings.Contains(body, "secret-of") {
			t.Errorf("%s: %d %s", method, status, body)
		}
		s.wasRefused(method, event.Event{Name: "files.example", Port: 443, Reason: event.ByMethod})
		// Without TLS, no request gets the secret.
		if status, body := s.do(client, method, "http://files.example/"); status != 200 || strings.Contains(body, "secret-of") {
			t.Errorf("%s without TLS: %d %s", method, status, body)
		}
	}
}

// Inside TLS that is read, no request names another host (as it could where TLS is
// only carried).
func TestRead_ChecksTheHostOfEachRequest(t *testing.T) {
	s := start(t, ruled)
	var secure spy
	serveHTTP(t, server+":443", true, secure.serve)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.Certificate())
	conn := tls.Client(s.dial("files.example", 443), &tls.Config{RootCAs: pool, ServerName: "files.example", NextProtos: []string{"h2", "http/1.1"}})
	must.Do(t, conn.Handshake())
	if protocol := conn.ConnectionState().NegotiatedProtocol; protocol != "http/1.1" {
		t.Errorf("the protocol is %q", protocol)
	}
	in := bufio.NewReader(conn)
	for host, want := range map[string]int{"files.example": 200, "files.example:443": 200} {
		fmt.Fprintf(conn, "GET /v1/ HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		response := must.Get(http.ReadResponse(in, nil))(t)
		must.Get(io.Copy(io.Discard, response.Body))(t)
		if response.StatusCode != want {
			t.Errorf("%s: %s", host, response.Status)
		}
	}
	fmt.Fprint(conn, "GET /v1/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")
	if response := must.Get(http.ReadResponse(in, nil))(t); response.StatusCode != 403 {
		t.Errorf("%s", response.Status)
	}
	s.wasRefused("another host", event.Event{Name: "files.example", Port: 443, Reason: event.ByHost})
	if seen := secure.got(); len(seen) != 2 {
		t.Errorf("the host gets %q", seen)
	}
	// The name in TLS is checked as everywhere.
	if got := s.outcome("files.example", 443, hello(t, "evil.example", nil)); got != accessDenied {
		t.Errorf("another name ends with %s", got)
	}
}

// Nobody checks the fields after a body, and no host gets them.
func TestRead_LeavesOutTrailers(t *testing.T) {
	s := start(t, ruled)
	got := make(chan string, 1)
	serveHTTP(t, server+":443", true, func(_ http.ResponseWriter, q *http.Request) {
		text, _ := io.ReadAll(q.Body)
		got <- fmt.Sprint(string(text), " ", q.Trailer)
	})
	q := must.Get(http.NewRequestWithContext(t.Context(), "POST", "https://files.example/v1/", io.NopCloser(strings.NewReader("body"))))(t)
	q.Trailer = http.Header{"X-After": {"placeholder-of-TOKEN"}}
	response := must.Get(s.readClient().Do(q))(t)
	response.Body.Close()
	if got := <-got; got != "body map[]" {
		t.Errorf("the host gets %s", got)
	}
}

func TestRead_VerifiesTheHost(t *testing.T) {
	s := start(t, ruled)
	s.roots = x509.NewCertPool()
	serveHTTP(t, server+":443", true, func(http.ResponseWriter, *http.Request) { t.Error("the host gets a request") })
	status, body := s.do(s.readClient(), "GET", "https://files.example/v1/")
	if status != 502 || !strings.Contains(body, "files.example:443 is allowed, and did not answer: its certificate is not valid") {
		t.Errorf("%d %s", status, body)
	}
}

func TestRead_SaysWhatAProgramDoesNotTrust(t *testing.T) {
	s := start(t, ruled)
	client := s.client() // it does not know the sandbox's authority
	if status, body := s.do(client, "GET", "https://files.example/v1/"); status != 0 || !strings.Contains(body, "certificate") {
		t.Errorf("%d %s", status, body)
	}
	for s.open.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	events := s.refusals()
	if len(events) != 1 || events[0].Kind != event.Failed || !strings.Contains(events[0].Problem, "does not trust") {
		t.Errorf("%v", events)
	}
}

func TestIssuer_IsForItsHostsAlone(t *testing.T) {
	a := must.Get(newIssuer([]string{"api.example"}))(t)
	block, rest := pem.Decode(a.certificate)
	if block == nil || len(rest) > 0 {
		t.Fatalf("%s", a.certificate)
	}
	pool := x509.NewCertPool()
	pool.AddCert(must.Get(x509.ParseCertificate(block.Bytes))(t))
	verify := func(name string) error {
		leaf := must.Get(x509.ParseCertificate(must.Get(a.host(name))(t).Certificate[0]))(t)
		_, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool})
		return err
	}
	if err := verify("api.example"); err != nil {
		t.Error(err)
	}
	if err := verify("evil.example"); err == nil {
		t.Error("a certificate for another host is valid")
	}
	again := must.Get(newIssuer([]string{"api.example"}))(t)
	if bytes.Equal(a.certificate, again.certificate) {
		t.Error("two sandboxes have one authority")
	}
}

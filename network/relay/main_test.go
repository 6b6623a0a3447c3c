package relay

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/resolver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networktest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

func TestMain(m *testing.M) { networktest.Main(m) }

// server is the address of all hosts of the tests.
const server = "93.184.216.34"

// sandbox is a relay, with what its client and its hosts need.
type sandbox struct {
	*Relay
	t testing.TB

	mu     sync.Mutex
	hosts  map[string][]netip.Addr
	events []event.Event

	consent Ask
}

// shift is added to the ports of the policy, for sockets: the hosts of the tests
// listen at the ports themselves, in the same namespace.
const shift = 10000

// at returns what code in the sandbox would dial as host and port.
func at(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port+shift)) }

// start starts a relay for a policy, of which change is merged into the usual
// one, with other times where they are given.
func start(t testing.TB, change string, shorter ...times) *sandbox {
	t.Helper()
	object := map[string]any{}
	for _, text := range []string{
		`{"schema":1,"domains":["files.example","*.host.example","git.example:22","other.example:8443"],"ports":[443,80],"private":[],"connections":16,"rate":1000,"megabytes":64,"names":10,"upstream":null}`,
		change,
	} {
		must.Do(t, json.Unmarshal([]byte(text), &object))
	}
	p := must.Get(policy.Parse(must.Get(json.Marshal(object))(t)))(t)
	s := &sandbox{t: t, hosts: map[string][]netip.Addr{}, consent: func(string, uint16) event.Reason { return event.ByNobody }}
	var ask func(context.Context, string) ([]netip.Addr, error)
	if p.Upstream == "" {
		ask = s.ask
	}
	names := resolver.NewNames(p, ask, func() ([]netip.Addr, error) { return nil, nil })
	secrets := make([]string, len(p.Credentials))
	for i, c := range p.Credentials {
		secrets[i] = "secret-of-" + c.Name
	}
	s.Relay = must.Get(New(p, names, secrets, s.record, func(name string, port uint16) event.Reason { return s.consent(name, port) }))(t)
	s.roots = authority().pool
	s.times.hello, s.times.answer, s.times.idle = time.Minute, time.Minute, time.Minute
	for _, other := range shorter {
		s.times = other
	}
	s.times.answer = cmp.Or(s.times.answer, time.Minute)
	for _, port := range p.Ports() {
		listener := must.Get(net.ListenTCP("tcp4", &net.TCPAddr{Port: int(port) + shift}))(t)
		t.Cleanup(func() { listener.Close() })
		go s.Serve(listener, port)
	}
	t.Cleanup(func() {
		// Every connection gives its slot back.
		deadline := time.Now().Add(patience.Long)
		for s.open.Load() != 0 && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if n := s.open.Load(); n != 0 {
			t.Errorf("%d connections are still counted", n)
		}
	})
	return s
}

func (s *sandbox) ask(_ context.Context, name string) ([]netip.Addr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if list, ok := s.hosts[name]; ok {
		return append([]netip.Addr(nil), list...), nil
	}
	return []netip.Addr{netip.MustParseAddr(server)}, nil
}

// host sets the addresses of a name.
func (s *sandbox) host(name string, addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[name] = nil
	for _, text := range addresses {
		s.hosts[name] = append(s.hosts[name], netip.MustParseAddr(text))
	}
}

func (s *sandbox) record(e event.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.Contains(fmt.Sprint(e), "secret-of") {
		s.t.Errorf("an event has a secret: %v", e)
	}
	s.events = append(s.events, e)
}

// refusals returns the events since the last time, without those of connections
// that were carried.
func (s *sandbox) refusals() []event.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []event.Event
	for _, e := range s.events {
		if e.Kind != event.Closed {
			list = append(list, e)
		}
	}
	s.events = nil
	return list
}

// closed waits for the event of a connection's end.
func (s *sandbox) closed() event.Event {
	s.t.Helper()
	deadline := time.Now().Add(patience.Long)
	for time.Now().Before(deadline) {
		s.mu.Lock()
		for _, e := range s.events {
			if e.Kind == event.Closed {
				s.mu.Unlock()
				return e
			}
		}
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	s.t.Fatal("no connection was closed")
	return event.Event{}
}

// inside returns the address of a name inside the sandbox.
func (s *sandbox) inside(name string) string {
	s.t.Helper()
	address, known, err := s.names.Inside(name)
	if !known {
		must.Get(s.names.Resolve(s.t.Context(), name))(s.t)
		address, _, err = s.names.Inside(name)
	}
	must.Do(s.t, err)
	return address.String()
}

// dial connects as the code in the sandbox does.
func (s *sandbox) dial(name string, port int) *net.TCPConn {
	s.t.Helper()
	conn := must.Get(net.Dial("tcp", at(s.inside(name), port)))(s.t).(*net.TCPConn)
	s.t.Cleanup(func() { conn.Close() })
	must.Do(s.t, conn.SetDeadline(time.Now().Add(patience.Long)))
	return conn
}

// outcome returns how a connection ends whose client sends something. The kernel
// reports a reset once: by the connect, the write or the read that comes first
// after it.
func (s *sandbox) outcome(name string, port int, send []byte) string {
	s.t.Helper()
	return outcome(s.t, at(s.inside(name), port), send)
}

func outcome(t testing.TB, address string, send []byte) string {
	t.Helper()
	conn, err := net.Dial("tcp4", address)
	if errors.Is(err, syscall.ECONNRESET) {
		return wasReset
	}
	must.Do(t, err)
	defer conn.Close()
	must.Do(t, conn.SetDeadline(time.Now().Add(patience.Long)))
	if _, err := conn.Write(send); errors.Is(err, syscall.ECONNRESET) {
		return wasReset
	}
	return ends(conn)
}

// client is an HTTP client in the sandbox.
func (s *sandbox) client() *http.Client {
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: authority().pool},
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			name, text, _ := net.SplitHostPort(address)
			port, err := strconv.Atoi(text)
			if err != nil {
				return nil, err
			}
			return net.Dial("tcp", at(s.inside(name), port))
		},
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience.Long}
}

type ca struct {
	certificate tls.Certificate
	pool        *x509.CertPool
}

// authority has a certificate for every host of the tests: they share a server,
// as behind a large provider.
var authority = sync.OnceValue(func() ca {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		DNSNames: []string{"files.example", "other.example", "evil.example", "*.host.example"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return ca{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool}
})

// serveHTTP starts an HTTP server for all hosts, which writes down the hosts and
// request lines that it gets. certificate is whether it speaks TLS.
func serveHTTP(t testing.TB, address string, overTLS bool, handler http.HandlerFunc) func() []string {
	t.Helper()
	var mu sync.Mutex
	var seen []string
	s := &http.Server{DisableGeneralOptionsHandler: true, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		seen = append(seen, q.Method+" "+q.Host+" "+q.RequestURI)
		mu.Unlock()
		handler(w, q)
	})}
	listener := must.Get(net.Listen("tcp", address))(t)
	t.Cleanup(func() { s.Close() })
	if overTLS {
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{authority().certificate}})
	}
	go func() { _ = s.Serve(listener) }()
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), seen...)
	}
}

// hello returns the records of a real ClientHello.
func hello(t testing.TB, name string, change func(*tls.Config)) []byte {
	t.Helper()
	config := &tls.Config{ServerName: name, InsecureSkipVerify: true}
	if change != nil {
		change(config)
	}
	written := &recorder{}
	_ = tls.Client(written, config).Handshake()
	return written.Bytes()
}

// recorder is a connection that keeps what is written and answers nothing.
type recorder struct{ bytes.Buffer }

func (*recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (*recorder) Close() error                     { return nil }
func (*recorder) LocalAddr() net.Addr              { return nil }
func (*recorder) RemoteAddr() net.Addr             { return nil }
func (*recorder) SetDeadline(time.Time) error      { return nil }
func (*recorder) SetReadDeadline(time.Time) error  { return nil }
func (*recorder) SetWriteDeadline(time.Time) error { return nil }

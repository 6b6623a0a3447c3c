package relay

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networktest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

func greet(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	fmt.Fprintf(w, "hello %s %s %s", q.Host, q.RequestURI, body)
}

// talk sends raw bytes to a name's port of HTTP, and returns all that comes back
// until the connection ends. It leaves its own direction open: to net/http, as to
// most servers, a client that closes it has gone.
func (s *sandbox) talk(name, raw string) string {
	s.t.Helper()
	conn := s.dial(name, policy.PortHTTP)
	_, _ = io.WriteString(conn, raw)
	data, _ := io.ReadAll(conn)
	return string(data)
}

const last = "Connection: close\r\n\r\n"

func TestHTTP_CarriesRequestsAsTheyWereWritten(t *testing.T) {
	s := start(t, `{}`)
	seen := serveHTTP(t, server+":80", false, greet)
	for _, target := range []string{"/", "/a%2Fb/../c?x=1&y;z", "//a", "/a|b\"?q=%zz", "/a?", "*"} {
		method := "GET"
		if target == "*" {
			method = "OPTIONS"
		}
		got := s.talk("files.example", method+" "+target+" HTTP/1.1\r\nHost: files.example\r\nUser-Agent: x\r\n"+last)
		if !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.Contains(got, "hello files.example "+target+" ") {
			t.Errorf("%s: %s", target, got)
		}
	}
	want := []string{"GET files.example /", "GET files.example /a%2Fb/../c?x=1&y;z", "GET files.example //a", "GET files.example /a|b\"?q=%zz", "GET files.example /a?", "OPTIONS files.example *"}
	if diff := cmp.Diff(want, seen()); diff != "" {
		t.Error(diff)
	}
	if refused := s.refusals(); refused != nil {
		t.Errorf("%v", refused)
	}
}

func TestHTTP_CarriesManyRequestsOverOneConnection(t *testing.T) {
	s := start(t, `{}`)
	serveHTTP(t, server+":80", false, greet)
	conn := s.dial("files.example", policy.PortHTTP)
	in := bufio.NewReader(conn)
	for i := range 10 {
		body := strings.Repeat("x", i*10_000)
		fmt.Fprintf(conn, "POST /%d HTTP/1.1\r\nHost: files.example:80\r\nX-Forwarded-For: a\r\nTransfer-Encoding: chunked\r\n\r\n", i)
		if body != "" {
			fmt.Fprintf(conn, "%x\r\n%s\r\n", len(body), body)
		}
		fmt.Fprint(conn, "0\r\n\r\n")
		response := must.Get(http.ReadResponse(in, nil))(t)
		if text := must.Get(io.ReadAll(response.Body))(t); string(text) != fmt.Sprintf("hello files.example /%d %s", i, body) {
			t.Fatalf("%.100s", text)
		}
	}
	conn.Close()
	if e := s.closed(); e.Name != "files.example" || e.Port != 80 || e.Up < 450_000 || e.Down < 450_000 || e.Address != netip.MustParseAddr(server) {
		t.Errorf("%+v", e)
	}
}

func TestHTTP_RefusesEveryRequestForAnotherHost(t *testing.T) {
	s := start(t, `{}`)
	seen := serveHTTP(t, server+":80", false, greet)
	good := "GET /good HTTP/1.1\r\nHost: files.example\r\n\r\n"
	host := event.Event{Name: "files.example", Port: 80, Reason: event.ByHost}
	notHTTP := event.Event{Name: "files.example", Port: 80, Reason: event.ByNotHTTP}
	for name, test := range map[string]struct {
		raw    string
		status int
		want   event.Event
	}{
		"another host":           {"GET / HTTP/1.1\r\nHost: evil.example\r\n" + last, 403, host},
		"another, later":         {good + "GET / HTTP/1.1\r\nHost: evil.example\r\n" + last, 403, host},
		"another port":           {"GET / HTTP/1.1\r\nHost: files.example:8080\r\n" + last, 403, host},
		"no host":                {"GET / HTTP/1.0\r\n\r\n", 403, host},
		"an empty host":          {"GET / HTTP/1.1\r\nHost:\r\n" + last, 403, host},
		"a user":                 {"GET / HTTP/1.1\r\nHost: evil.example@files.example\r\n" + last, 400, notHTTP},
		"two hosts":              {"GET / HTTP/1.1\r\nHost: files.example\r\nHost: evil.example\r\n" + last, 400, notHTTP},
		"a folded host":          {"GET / HTTP/1.1\r\nHost: files.example\r\n evil.example\r\n" + last, 400, notHTTP},
		"a space before colon":   {"GET / HTTP/1.1\r\nHost : evil.example\r\nHost: files.example\r\n" + last, 400, notHTTP},
		"absolute, another":      {"GET http://evil.example/ HTTP/1.1\r\nHost: files.example\r\n" + last, 403, host},
		"absolute, the same":     {"GET http://files.example/ HTTP/1.1\r\nHost: files.example\r\n" + last, 403, host},
		"absolute, two schemes":  {"GET https://files.example/ HTTP/1.1\r\nHost: files.example\r\n" + last, 403, host},
		"CONNECT":                {"CONNECT files.example:80 HTTP/1.1\r\nHost: files.example\r\n" + last, 403, host},
		"CONNECT of a path":      {"CONNECT / HTTP/1.1\r\nHost: files.example\r\n" + last, 403, host},
		"HTTP/2":                 {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 403, host},
		"TLS":                    {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, notHTTP},
		"SSH":                    {"SSH-2.0-OpenSSH_9.2\r\n\r\n", 400, notHTTP},
		"two lengths":            {"POST / HTTP/1.1\r\nHost: files.example\r\nContent-Length: 5\r\nContent-Length: 6\r\n" + last + "hello", 400, notHTTP},
		"a signed length":        {"POST / HTTP/1.1\r\nHost: files.example\r\nContent-Length: +5\r\n" + last + "hello", 400, notHTTP},
		"an unknown coding":      {"POST / HTTP/1.1\r\nHost: files.example\r\nTransfer-Encoding: gzip, chunked\r\n" + last, 501, notHTTP},
		"a header too long":      {"GET / HTTP/1.1\r\nHost: files.example\r\nX: " + strings.Repeat("x", maxRequestHeader+8192) + "\r\n" + last, 431, notHTTP},
		"a NUL in the header":    {"GET / HTTP/1.1\r\nHost: files.example\r\nX: \x00\r\n" + last, 400, notHTTP},
		"a request line of LF":   {"GET / HTTP/1.1\nHost: evil.example\n\n", 403, host},
		"a request in a request": {"POST / HTTP/1.1\r\nHost: files.example\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n" + last, 403, host},
	} {
		got := s.talk("files.example", test.raw)
		if !strings.Contains(got, fmt.Sprintf(" %d ", test.status)) {
			t.Errorf("%s is answered %.200q", name, got)
		}
		if test.status == 403 && (!strings.Contains(got, "X-Sandbox-Refused: host\r\n") || !strings.Contains(got, "the sandbox's network refused files.example:80 (HTTP for another host)")) {
			t.Errorf("%s is answered %.500q", name, got)
		}
		s.wasRefused(name, test.want)
	}
	for _, line := range seen() {
		if line != "GET files.example /good" && line != "POST files.example /" {
			t.Errorf("the host gets %q", line)
		}
	}
	if !slices.Contains(seen(), "GET files.example /good") {
		t.Error("the control did not get through")
	}
}

func TestHTTP_AnswersRefusalsWithASentence(t *testing.T) {
	s := start(t, `{"domains":["files.example","git.example:22","private.example"],"ports":[80]}`)
	s.host("private.example", "10.0.0.5")
	for name, test := range map[string]struct {
		inside string
		host   string
		want   string
	}{
		"an address":     {"93.184.216.34", "files.example", "93.184.216.34:80 (an address). Connect to hosts by name"},
		"a port":         {s.inside("git.example"), "git.example", `git.example:80 (the port). Trying again does not help; an operator allows it with network.domains: "git.example:80"`},
		"nobody answers": {s.inside("files.example"), "files.example", "files.example:80 is allowed, and did not answer: connection refused"},
	} {
		conn := must.Get(net.Dial("tcp4", at(test.inside, 80)))(t)
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n%s", test.host, last)
		got := must.Get(io.ReadAll(conn))(t)
		conn.Close()
		if !strings.Contains(string(got), test.want) {
			t.Errorf("%s: %s", name, got)
		}
		if events := s.refusals(); len(events) != 1 || !strings.HasSuffix(events[0].Sentence(), test.want) {
			t.Errorf("%s: %v", name, events)
		}
	}
}

func TestHTTP_RefusesAnAddressWhateverIsSpoken(t *testing.T) {
	s := start(t, `{}`)
	outcome(t, at("93.184.216.34", 80), []byte("SSH-2.0-x\r\n\r\n"))
	s.wasRefused("SSH", event.Event{Address: netip.MustParseAddr("93.184.216.34"), Port: 80, Reason: event.ByAddress})
}

func TestHTTP_ReportsARefusalBeforeItIsSeen(t *testing.T) {
	s := start(t, `{}`)
	for range 200 {
		conn := s.dial("files.example", policy.PortHTTP)
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
		must.Get(io.ReadFull(conn, make([]byte, 1)))(t)
		if events := s.refusals(); len(events) != 1 {
			t.Fatalf("%v", events)
		}
		conn.Close()
	}
}

func TestHTTP_CarriesWebSocketsAndNoOtherUpgrade(t *testing.T) {
	s := start(t, `{}`)
	upgrades := make(chan string, 10)
	serveHTTP(t, server+":80", false, func(w http.ResponseWriter, q *http.Request) {
		upgrades <- q.Header.Get("Upgrade") + "|" + q.Header.Get("HTTP2-Settings") + "|" + q.Header.Get("Connection")
		if q.Header.Get("Upgrade") == "" {
			greet(w, q)
			return
		}
		conn, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", q.Header.Get("Upgrade"))
		_, _ = io.Copy(conn, in)
	})
	conn := s.dial("files.example", policy.PortHTTP)
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: files.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	in := bufio.NewReader(conn)
	if response := must.Get(http.ReadResponse(in, nil))(t); response.StatusCode != 101 {
		t.Fatalf("%v", response)
	}
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
	echoed := make([]byte, 10)
	if _, err := io.ReadFull(in, echoed); err != nil || string(echoed) != "GET / HTTP" {
		t.Errorf("%q, %v", echoed, err)
	}
	conn.Close()
	s.closed()
	got := s.talk("files.example", "GET / HTTP/1.1\r\nHost: files.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") {
		t.Errorf("h2c is answered %q", got)
	}
	if first, second := <-upgrades, <-upgrades; first != "websocket||Upgrade" || second != "||" {
		t.Errorf("the host gets %q, %q", first, second)
	}
}

func TestHTTP_BoundsBytes(t *testing.T) {
	s := start(t, `{"megabytes":1}`)
	zeros := make([]byte, 1<<20)
	serveHTTP(t, server+":80", false, func(w http.ResponseWriter, q *http.Request) { _, _ = w.Write(zeros); _, _ = w.Write(zeros) })
	if got := s.talk("files.example", "GET / HTTP/1.1\r\nHost: files.example\r\n"+last); len(got) > 1<<20+8192 {
		t.Errorf("%d bytes came", len(got))
	}
	s.wasRefused("the bytes", event.Event{Name: "files.example", Port: 80, Reason: event.ByLimit, Option: "network.megabytes"})
}

func TestHTTP_EndsSlowAndIdleConnections(t *testing.T) {
	s := start(t, `{}`, times{hello: 50 * time.Millisecond, dial: time.Minute, idle: 100 * time.Millisecond})
	networktest.Listen(t, server+":80", func(conn *net.TCPConn) {
		// It takes the request and never answers.
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
	})
	for _, raw := range []string{"", "GET / HT", "GET / HTTP/1.1\r\nHost: files.example\r\n\r\n"} {
		conn := s.dial("files.example", policy.PortHTTP)
		fmt.Fprint(conn, raw)
		if data, err := io.ReadAll(conn); len(data) > 0 && !strings.HasPrefix(string(data), "HTTP/1.1 4") {
			t.Errorf("%q is answered %q, %v", raw, data, err)
		}
	}
}

func TestHTTP_GoesThroughTheUpstreamProxy(t *testing.T) {
	s := start(t, `{"upstream":"http://93.184.216.99:3128"}`)
	var mu sync.Mutex
	var asked []string
	secure := serveHTTP(t, server+":443", true, greet)
	proxy := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		asked = append(asked, q.Method+" "+q.RequestURI)
		mu.Unlock()
		switch {
		case q.RequestURI == "git.example:22":
			http.Error(w, "no", http.StatusForbidden)
		case q.Method == http.MethodConnect:
			host, err := net.Dial("tcp", server+":443")
			if err != nil {
				t.Error(err)
				return
			}
			defer host.Close()
			w.WriteHeader(http.StatusOK)
			conn, in, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			go func() { _, _ = io.Copy(host, in); _ = host.(*net.TCPConn).CloseWrite() }()
			_, _ = io.Copy(conn, host)
		default:
			greet(w, q)
		}
	})}
	listener := must.Get(net.Listen("tcp", "93.184.216.99:3128"))(t)
	go func() { _ = proxy.Serve(listener) }()
	t.Cleanup(func() { proxy.Close() })
	for _, address := range []string{"https://a.host.example/x", "http://files.example/y?z"} {
		response, err := s.client().Get(address)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		text := must.Get(io.ReadAll(response.Body))(t)
		response.Body.Close()
		if !strings.HasPrefix(string(text), "hello ") {
			t.Errorf("%s is answered %s", address, text)
		}
	}
	// What is for the host and no path has none at the proxy (RFC 9112, section 3.2.4).
	q := must.Get(http.NewRequestWithContext(t.Context(), http.MethodOptions, "http://files.example", nil))(t)
	q.URL.Opaque = "*"
	response := must.Get(s.client().Do(q))(t)
	response.Body.Close()
	if got := s.outcome("git.example", 22, nil); got != wasReset {
		t.Errorf("git.example ends with %s", got)
	}
	want := []event.Event{{Kind: event.Failed, Name: "git.example", Port: 22, Problem: "the upstream proxy answers CONNECT with status 403", Count: 1}}
	if diff := cmp.Diff(want, s.refusals(), compare); diff != "" {
		t.Error(diff)
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff([]string{"CONNECT a.host.example:443", "GET http://files.example/y?z", "OPTIONS http://files.example", "CONNECT git.example:22"}, asked); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"GET a.host.example /x"}, secure()); diff != "" {
		t.Error(diff)
	}
}

// Whatever is sent to port 80, the host gets requests for the connection's name
// alone.
func FuzzHTTP(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: files.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: files.example\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET http://evil.example/ HTTP/1.1\r\nHost: files.example\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: files.example\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
		"GET / HTTP/1.1\r\nHost: files.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	s := start(f, `{"rate":10000,"megabytes":1048576}`)
	var mu sync.Mutex
	var got []string
	serveHTTP(f, server+":80", false, func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		got = append(got, q.Host)
		mu.Unlock()
		greet(w, q)
	})
	f.Fuzz(func(t *testing.T, raw []byte) {
		s.t = t
		conn := s.dial("files.example", policy.PortHTTP)
		_, _ = conn.Write(raw)
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
		mu.Lock()
		hosts := got
		got = nil
		mu.Unlock()
		for _, host := range hosts {
			if host != "files.example" {
				t.Fatalf("the host gets a request for %q", host)
			}
		}
		s.mu.Lock()
		s.events = nil
		s.mu.Unlock()
	})
}

func TestHTTP_BoundsTheLinesOfAResponse(t *testing.T) {
	s := start(t, `{}`)
	var response string
	networktest.Listen(t, server+":80", func(conn *net.TCPConn) {
		buffer := make([]byte, 4096)
		_, _ = conn.Read(buffer)
		_, _ = io.WriteString(conn, response)
		conn.Close()
	})
	many := strings.Repeat("x:\r\n", 600)
	for name, test := range map[string]struct {
		response string
		passes   bool
	}{
		"600 lines":                     {"HTTP/1.1 200 OK\r\n" + many + "\r\n", true},
		"1200 lines":                    {"HTTP/1.1 200 OK\r\n" + many + many + "\r\n", false},
		"1200 lines in two heads":       {"HTTP/1.1 103 Early Hints\r\n" + many + "\r\nHTTP/1.1 200 OK\r\n" + many + "\r\n", false},
		"1200 lines after a blank more": {"HTTP/1.1  103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n" + many + many + "\r\n", false},
		"1200 lines of a body":          {"HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("\n", 1200), true},
	} {
		response = test.response
		got := s.talk("files.example", "GET / HTTP/1.1\r\nHost: files.example\r\n"+last)
		if passes := strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n"); passes != test.passes {
			t.Errorf("%s: %.200q", name, got)
		}
		if refused := !test.passes && !strings.Contains(got, "its response has too many header lines"); refused {
			t.Errorf("%s is answered %.300q", name, got)
		}
		s.refusals()
	}
}

// Requests with large heads take bounded memory together: of more, connections end, and small requests
// go on.
func TestHTTP_BoundsLargeHeads(t *testing.T) {
	s := start(t, `{"connections":400,"rate":10000}`)
	serveHTTP(t, server+":80", false, greet)
	field := "X-Large: " + strings.Repeat("x", 2*smallHead) + "\r\n"
	var open []net.Conn
	for range largeHeads + 50 {
		conn := s.dial("files.example", policy.PortHTTP)
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: files.example\r\n"+field)
		open = append(open, conn)
	}
	patience.Until(t, "the places are taken", func() bool { return len(s.large) == largeHeads })
	if got := s.talk("files.example", "GET /small HTTP/1.1\r\nHost: files.example\r\n"+last); !strings.Contains(got, "hello files.example /small") {
		t.Errorf("a small request is answered %q", got)
	}
	if got := s.talk("files.example", "GET /large HTTP/1.1\r\nHost: files.example\r\n"+field+last); got != "" {
		t.Errorf("one large head too many is answered %q", got)
	}
	for _, conn := range open {
		conn.Close()
	}
	patience.Until(t, "the places are free", func() bool { return len(s.large) == 0 })
	if got := s.talk("files.example", "GET /large HTTP/1.1\r\nHost: files.example\r\n"+field+last); !strings.Contains(got, "hello files.example /large") {
		t.Errorf("a large head is answered %q", got)
	}
	patience.Until(t, "its place is free", func() bool { return len(s.large) == 0 })
}

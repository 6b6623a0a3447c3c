package relay

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networktest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

var compare = cmpopts.EquateComparable(netip.Addr{})

// wasRefused checks that one refusal was reported.
func (s *sandbox) wasRefused(what string, want event.Event) {
	s.t.Helper()
	want.Kind, want.Count = event.Refused, 1
	if diff := cmp.Diff([]event.Event{want}, s.refusals(), compare); diff != "" {
		s.t.Errorf("%s: %s", what, diff)
	}
}

// ends returns how a connection ended.
func ends(conn net.Conn) string {
	data, err := io.ReadAll(conn)
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return fmt.Sprintf("%q and a reset", data)
	case err != nil:
		return err.Error()
	}
	return fmt.Sprintf("%q", data)
}

const (
	accessDenied = `"\x15\x03\x03\x00\x02\x021"`
	wasReset     = `"" and a reset`
)

func echo(conn *net.TCPConn) {
	_, _ = io.Copy(conn, conn)
	conn.Close()
}

func TestRelay_CarriesTLS(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) { carriesTLS(t, version) })
	}
}

func carriesTLS(t *testing.T, version uint16) {
	s := start(t, `{}`)
	serveHTTP(t, server+":443", true, func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "hello ", q.Host) })
	client := s.client()
	client.Transport.(*http.Transport).TLSClientConfig.MaxVersion = version
	response := must.Get(client.Get("https://files.example/"))(t)
	text := must.Get(io.ReadAll(response.Body))(t)
	response.Body.Close()
	if string(text) != "hello files.example" {
		t.Errorf("%s", text)
	}
	client.CloseIdleConnections()
	e := s.closed()
	if e.Name != "files.example" || e.Port != 443 || e.Address != netip.MustParseAddr(server) || e.Up < 200 || e.Down < 400 {
		t.Errorf("%+v", e)
	}
	if refused := s.refusals(); refused != nil {
		t.Errorf("%v", refused)
	}
}

func TestRelay_RefusesTLSForAnotherHost(t *testing.T) {
	s := start(t, `{}`)
	networktest.Listen(t, server+":443", func(conn *net.TCPConn) {
		t.Errorf("the host gets a connection")
		conn.Close()
	})
	at := event.Event{Name: "files.example", Port: 443}
	with := func(reason event.Reason) event.Event { e := at; e.Reason = reason; return e }
	for name, test := range map[string]struct {
		send []byte
		want event.Event
		end  string
	}{
		"another name": {hello(t, "evil.example", nil), with(event.BySNI), accessDenied},
		"no name":      {buildHello(), with(event.ByNoSNI), accessDenied},
		"ECH":          {buildHello(serverName("files.example"), extension(0xfe0d)), with(event.ByHiddenSNI), accessDenied},
		"plain HTTP":   {[]byte("GET / HTTP/1.1\r\nHost: files.example\r\n\r\n"), with(event.ByNotTLS), wasReset},
	} {
		if got := s.outcome("files.example", 443, test.send); got != test.end {
			t.Errorf("%s ends with %s", name, got)
		}
		s.wasRefused(name, test.want)
	}
	// A client that closes without a word is not refused anything.
	s.dial("files.example", 443).Close()
	for s.open.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	if refused := s.refusals(); refused != nil {
		t.Errorf("an empty connection: %v", refused)
	}
}

func TestRelay_RefusesASlowHello(t *testing.T) {
	longer(t, func(t *testing.T, hello time.Duration) bool {
		s := start(t, `{}`, times{hello: hello, dial: time.Minute, idle: time.Minute})
		if got := s.outcome("files.example", 443, []byte{22, 3, 1}); got != wasReset {
			t.Errorf("it ends with %s", got)
		}
		refused := s.refusals()
		if refused == nil {
			return false // the bytes came too late
		}
		want := event.Event{Kind: event.Refused, Count: 1, Name: "files.example", Port: 443, Reason: event.ByNotTLS}
		if diff := cmp.Diff([]event.Event{want}, refused, compare); diff != "" {
			t.Errorf("a slow hello: %s", diff)
		}
		if got := s.outcome("files.example", 443, nil); got != wasReset {
			t.Errorf("without any byte it ends with %s", got)
		}
		if refused := s.refusals(); refused != nil {
			t.Errorf("without any byte: %v", refused)
		}
		return true
	})
}

func TestRelay_RefusesAddressesAndPorts(t *testing.T) {
	s := start(t, `{}`)
	for _, test := range []struct {
		address string
		port    int
		end     string
		want    event.Event
	}{
		{"93.184.216.34", 443, accessDenied, event.Event{Reason: event.ByAddress, Address: netip.MustParseAddr("93.184.216.34"), Port: 443}},
		{"127.0.0.1", 22, wasReset, event.Event{Reason: event.ByAddress, Address: netip.MustParseAddr("127.0.0.1"), Port: 22}},
		{"169.254.169.254", 443, accessDenied, event.Event{Reason: event.ByAddress, Address: netip.MustParseAddr("169.254.169.254"), Port: 443}},
		{s.inside("files.example"), 22, wasReset, event.Event{Name: "files.example", Reason: event.ByPort, Port: 22, Option: "network.domains", Value: "files.example:22"}},
		{s.inside("git.example"), 443, accessDenied, event.Event{Name: "git.example", Reason: event.ByPort, Port: 443, Option: "network.domains", Value: "git.example:443"}},
	} {
		if got := outcome(t, at(test.address, test.port), nil); got != test.end {
			t.Errorf("%s port %d ends with %s", test.address, test.port, got)
		}
		s.wasRefused(test.address, test.want)
	}
}

func TestRelay_CarriesOtherProtocolsInBothDirections(t *testing.T) {
	s := start(t, `{}`)
	networktest.Listen(t, server+":22", func(conn *net.TCPConn) {
		_, _ = conn.Write([]byte("SSH-2.0-server\r\n"))
		echo(conn)
	})
	conn := s.dial("git.example", 22)
	greeting := make([]byte, 16)
	must.Get(io.ReadFull(conn, greeting))(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	var group sync.WaitGroup
	group.Go(func() {
		_, err := conn.Write(sent)
		must.Do(t, err)
		must.Do(t, conn.CloseWrite())
	})
	got := must.Get(io.ReadAll(conn))(t)
	group.Wait()
	if !bytes.Equal(got, sent) || string(greeting) != "SSH-2.0-server\r\n" {
		t.Errorf("%d bytes came back of %d, after %q", len(got), len(sent), greeting)
	}
	if e := s.closed(); e.Up != int64(len(sent)) || e.Down != int64(len(sent)+16) {
		t.Errorf("%+v", e)
	}
}

func TestRelay_ChecksTLSAtEveryPort(t *testing.T) {
	s := start(t, `{}`)
	serveHTTP(t, server+":8443", true, func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "hello ", q.Host) })
	response := must.Get(s.client().Get("https://other.example:8443/"))(t)
	text := must.Get(io.ReadAll(response.Body))(t)
	response.Body.Close()
	if string(text) != "hello other.example:8443" {
		t.Fatalf("the control: %s", text)
	}
	s.closed()
	s.refusals()
	conn := s.dial("other.example", 8443)
	must.Get(conn.Write(hello(t, "evil.example", nil)))(t)
	if got := ends(conn); !strings.Contains(got, "\\x15\\x03\\x03\\x00\\x02\\x021") {
		t.Errorf("ends with %s", got)
	}
	s.wasRefused("another name", event.Event{Name: "other.example", Port: 8443, Reason: event.BySNI})
}

// What a client sends right after its first message is not lost.
func TestRelay_CarriesWhatFollowsAHello(t *testing.T) {
	s := start(t, `{}`)
	for port, name := range map[int]string{443: "files.example", 8443: "other.example"} {
		got := make(chan []byte, 1)
		networktest.Listen(t, fmt.Sprintf("%s:%d", server, port), func(conn *net.TCPConn) {
			defer conn.Close()
			_, _ = conn.Write(make([]byte, 100))
			data, _ := io.ReadAll(conn)
			got <- data
		})
		sent := append(buildHello(serverName(name)), "\x14\x03\x03\x00\x01\x01 and more"...)
		conn := s.dial(name, port)
		must.Get(conn.Write(sent))(t)
		must.Do(t, conn.CloseWrite())
		if data := <-got; !bytes.Equal(data, sent) {
			t.Errorf("port %d: %d bytes of %d come", port, len(data), len(sent))
		}
	}
}

// A server can ask for a second ClientHello, which could name another host.
func TestRelay_ChecksTheSecondHello(t *testing.T) {
	message := append([]byte{2, 0, 0, 52, 3, 3}, helloRetry...)
	message = append(message, 0, 0x13, 1, 0, 0, 12, 0, 43, 0, 2, 3, 4, 0, 51, 0, 2, 0, 23)
	record := func(content []byte) []byte {
		return append([]byte{recordHandshake, 3, 3, 0, byte(len(content))}, content...)
	}
	change := []byte{recordChangeCipher, 3, 3, 0, 1, 1}
	for name, retry := range map[string][]byte{
		"in one record":         record(message),
		"in two records":        slices.Concat(record(message[:7]), record(message[7:])),
		"byte by byte":          slices.Concat(record(message[:1]), record(message[1:2]), record(message[2:])),
		"after an alert":        slices.Concat([]byte{recordAlert, 3, 3, 0, 2, 1, 112}, record(message)),
		"after a change":        slices.Concat(change, record(message)),
		"after an empty record": slices.Concat(record(nil), record(message)),
	} {
		t.Run(name, func(t *testing.T) { checksSecondHello(t, retry) })
	}
}

func checksSecondHello(t *testing.T, retry []byte) {
	s := start(t, `{}`)
	got := make(chan string, 10)
	networktest.Listen(t, server+":443", func(conn *net.TCPConn) {
		defer conn.Close()
		in := bufio.NewReader(conn)
		for {
			record, err := readRecord(in, nil, maxHello)
			if err != nil {
				close(got)
				return
			}
			got <- string(record)
			if record[0] == recordHandshake {
				_, _ = conn.Write(retry)
			}
		}
	})
	first := buildHello(serverName("files.example"))
	change := []byte{recordChangeCipher, 3, 3, 0, 1, 1}
	conn := s.dial("files.example", 443)
	// The second one is sent before the server asks for it.
	must.Get(conn.Write(bytes.Join([][]byte{first, change, buildHello(serverName("evil.example"))}, nil)))(t)
	end := ends(conn)
	var records []string
	for record := range got {
		records = append(records, record)
	}
	if diff := cmp.Diff([]string{string(first)}, records); diff != "" {
		t.Error("the host gets other than the first hello:", diff)
	}
	if !strings.Contains(end, "\\x15\\x03\\x03\\x00\\x02\\x021") {
		t.Errorf("ends with %s", end)
	}
	s.wasRefused("the second hello", event.Event{Name: "files.example", Port: 443, Reason: event.BySNI})
}

func TestRelay_CarriesASecondHelloOfTheSameHost(t *testing.T) {
	s := start(t, `{}`)
	hellos := make(chan int, 1)
	networktest.Listen(t, server+":443", func(conn *net.TCPConn) {
		defer conn.Close()
		read := &kept{Conn: conn}
		over := tls.Server(read, &tls.Config{Certificates: []tls.Certificate{authority().certificate}, CurvePreferences: []tls.CurveID{tls.CurveP521}})
		err := over.Handshake()
		hellos <- read.hellos()
		if err == nil {
			_, _ = io.WriteString(over, "hello")
			_ = over.CloseWrite()
		}
	})
	// The client offers a share for its first curve, which the server does not take.
	conn := tls.Client(s.dial("files.example", 443), &tls.Config{
		RootCAs: authority().pool, ServerName: "files.example", CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP521},
	})
	if text, err := io.ReadAll(conn); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
	if n := <-hellos; n != 2 {
		t.Errorf("the server got %d hellos", n)
	}
}

// kept keeps what is read.
type kept struct {
	net.Conn
	bytes bytes.Buffer
}

func (k *kept) Read(b []byte) (int, error) {
	n, err := k.Conn.Read(b)
	k.bytes.Write(b[:n])
	return n, err
}

// hellos returns how many records begin with a ClientHello.
func (k *kept) hellos() (n int) {
	in := bytes.NewReader(k.bytes.Bytes())
	for {
		record, err := readRecord(in, nil, maxHello)
		if err != nil {
			return n
		}
		if record[0] == recordHandshake && record[recordHeader] == messageClientHello {
			n++
		}
	}
}

func TestRelay_DialsCheckedAddressesAlone(t *testing.T) {
	s := start(t, `{}`)
	for _, address := range []string{server, "10.0.0.5", networktest.Own.String()} {
		networktest.Listen(t, address+":443", func(conn *net.TCPConn) {
			if n, _ := conn.Read(make([]byte, 1)); n > 0 && address != server {
				t.Errorf("%s gets a byte", address)
			}
			_, _ = conn.Write([]byte{recordAlert, 3, 3, 0, 2, 2, 80})
			conn.Close()
		})
	}
	inside := s.inside("files.example")
	for _, test := range []struct {
		addresses []string
		want      event.Event
	}{
		{[]string{"10.0.0.5"}, event.Event{Reason: event.ByPrivate, Option: "network.private", Value: "10.0.0.0/24"}},
		{[]string{server, "10.0.0.5"}, event.Event{Reason: event.ByPrivate, Option: "network.private", Value: "10.0.0.0/24"}},
		{[]string{"::ffff:10.0.0.5"}, event.Event{Reason: event.ByPrivate, Option: "network.private", Value: "10.0.0.0/24"}},
		{[]string{networktest.Own.String()}, event.Event{Reason: event.ByPrivate}},
	} {
		// The name leads elsewhere after it was looked up.
		s.host("files.example", test.addresses...)
		s.names.Forget("files.example")
		if got := outcome(t, at(inside, 443), hello(t, "files.example", nil)); got != wasReset {
			t.Errorf("%v ends with %s", test.addresses, got)
		}
		test.want.Name, test.want.Port = "files.example", 443
		s.wasRefused(fmt.Sprint(test.addresses), test.want)
	}
	s.host("files.example", server)
	s.names.Forget("files.example")
	if got := s.outcome("files.example", 443, hello(t, "files.example", nil)); !strings.HasPrefix(got, `"\x15\x03\x03\x00\x02\x02P"`) {
		t.Errorf("the control ends with %s", got)
	}
}

func TestRelay_TriesEveryAddress(t *testing.T) {
	s := start(t, `{}`)
	networktest.Listen(t, "93.184.216.40:22", echo)
	// Nobody listens at the first two.
	s.host("git.example", "93.184.216.38", "93.184.216.39", "93.184.216.40")
	conn := s.dial("git.example", 22)
	must.Get(conn.Write([]byte("hello")))(t)
	must.Do(t, conn.CloseWrite())
	if got := ends(conn); got != `"hello"` {
		t.Errorf("ends with %s", got)
	}
}

func TestRelay_SaysWhenAnAllowedHostDoesNotAnswer(t *testing.T) {
	s := start(t, `{}`)
	if got := s.outcome("git.example", 22, nil); got != wasReset {
		t.Errorf("ends with %s", got)
	}
	want := []event.Event{{Kind: event.Failed, Name: "git.example", Port: 22, Problem: "connection refused", Count: 1}}
	if diff := cmp.Diff(want, s.refusals(), compare); diff != "" {
		t.Error(diff)
	}
}

func TestRelay_BoundsConnections(t *testing.T) {
	s := start(t, `{"connections":4}`)
	networktest.Listen(t, server+":22", echo)
	var conns []*net.TCPConn
	for range 4 {
		conn := s.dial("git.example", 22)
		must.Get(conn.Write([]byte("x")))(t)
		must.Get(io.ReadFull(conn, make([]byte, 1)))(t)
		conns = append(conns, conn)
	}
	if got := s.outcome("git.example", 22, nil); got != wasReset {
		t.Errorf("the fifth connection ends with %s", got)
	}
	s.wasRefused("the fifth", event.Event{Name: "git.example", Port: 22, Reason: event.ByLimit, Option: "network.connections"})
	conns[0].Close()
	s.closed()
	conn := s.dial("git.example", 22)
	must.Get(conn.Write([]byte("x")))(t)
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

func TestRelay_SlowsDownWhatIsAboveItsRate(t *testing.T) {
	s := start(t, `{"rate":1,"connections":1000}`)
	networktest.Listen(t, server+":22", func(conn *net.TCPConn) { conn.Close() })
	var mu sync.Mutex
	ended := map[string]int{}
	var group sync.WaitGroup
	inside := s.inside("git.example")
	for range 40 {
		group.Go(func() {
			got := outcome(t, at(inside, 22), nil)
			mu.Lock()
			defer mu.Unlock()
			ended[got]++
		})
	}
	group.Wait()
	// One passes at once and one within a second, and more where the machine is slow.
	if ended[`""`] < 2 || ended[wasReset] == 0 {
		t.Errorf("%v", ended)
	}
	for _, e := range s.refusals() {
		if e.Reason != event.ByLimit || e.Option != "network.rate" {
			t.Errorf("%+v", e)
		}
	}
}

func TestRelay_BoundsBytes(t *testing.T) {
	s := start(t, `{"megabytes":1,"connections":1}`)
	zeros := make([]byte, 64<<10)
	networktest.Listen(t, server+":22", func(conn *net.TCPConn) {
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1))
		for {
			if _, err := conn.Write(zeros); err != nil {
				return
			}
		}
	})
	conn := s.dial("git.example", 22)
	must.Get(conn.Write([]byte("x")))(t)
	n, err := io.Copy(io.Discard, conn)
	if n > 1<<20+8<<10 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%d bytes came, then %v", n, err)
	}
	e := s.closed()
	if total := e.Up + e.Down; total > 1<<20+8<<10 || total < 1<<20 {
		t.Errorf("%+v", e)
	}
	limit := event.Event{Name: "git.example", Port: 22, Reason: event.ByLimit, Option: "network.megabytes"}
	s.wasRefused("the bytes", limit)
	for s.open.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	if got := s.outcome("git.example", 22, nil); got != wasReset {
		t.Errorf("the next connection ends with %s", got)
	}
	s.wasRefused("the next connection", limit)
}

func TestRelay_StandsTenThousandHalfOpenConnections(t *testing.T) {
	s := start(t, `{"connections":64,"rate":10000}`)
	serveHTTP(t, server+":443", true, func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "hello") })
	inside := s.inside("files.example")
	const total, atOnce = 10_000, 500
	for range total / atOnce {
		var conns []net.Conn
		for range atOnce {
			conn, err := net.Dial("tcp4", at(inside, 443))
			if err == nil {
				conns = append(conns, conn)
			}
		}
		if n := s.open.Load(); n > 64+int64(len(s.policy.Ports())) {
			t.Fatalf("%d connections are open", n)
		}
		for _, conn := range conns {
			conn.Close()
		}
	}
	// Once those that wait in the kernel's queue are through, it serves again.
	deadline := time.Now().Add(patience.Long)
	for {
		response, err := s.client().Get("https://files.example/")
		if err == nil {
			response.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	limits := 0
	for _, e := range s.refusals() {
		if e.Reason == event.ByLimit && e.Option == "network.connections" {
			limits++
		}
	}
	if limits == 0 {
		t.Error("no connection was refused")
	}
}

// Code that has left cannot occupy a connection for long with a host that does not answer.
func TestRelay_BoundsTheAnswerToAHello(t *testing.T) {
	s := start(t, `{}`, times{hello: time.Minute, answer: 100 * time.Millisecond, dial: time.Minute, idle: time.Hour})
	networktest.Listen(t, server+":443", func(conn *net.TCPConn) { _, _ = io.Copy(io.Discard, conn) })
	conn := s.dial("files.example", 443)
	must.Get(conn.Write(hello(t, "files.example", nil)))(t)
	if got := ends(conn); got != wasReset {
		t.Errorf("ends with %s", got)
	}
	if events := s.refusals(); len(events) != 1 || events[0].Kind != event.Failed || events[0].Problem != "timeout" {
		t.Errorf("events: %v", events)
	}
}

func TestRelay_EndsIdleConnections(t *testing.T) {
	longer(t, func(t *testing.T, idle time.Duration) bool {
		s := start(t, `{}`, times{hello: time.Minute, dial: time.Minute, idle: idle})
		networktest.Listen(t, server+":22", echo)
		conn := s.dial("git.example", 22)
		// As long as single bytes come, it stays.
		for range 15 {
			_, writeErr := conn.Write([]byte("x"))
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil || writeErr != nil {
				return false
			}
			time.Sleep(idle / 10)
		}
		if got := ends(conn); got != wasReset {
			t.Errorf("ends with %s", got)
		}
		return true
	})
}

// longer runs a test with a limit of time within which something has to come. Where it
// returns false, this machine was too busy for that, and it runs again with more time.
func longer(t *testing.T, test func(t *testing.T, limit time.Duration) bool) {
	t.Helper()
	inTime := false
	for limit := time.Duration(patience.Factor()) * time.Second; !inTime; limit *= 5 {
		if limit > 2*patience.Long {
			t.Fatal("no limit was long enough")
		}
		t.Run(limit.String(), func(t *testing.T) { inTime = test(t, limit) })
	}
}

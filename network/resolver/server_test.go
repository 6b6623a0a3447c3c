package resolver_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/resolver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networktest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

var compare = cmpopts.EquateComparable(netip.Addr{})

// world is what a sandbox's resolver asks.
type world struct {
	mu    sync.Mutex
	asked []string
	// hosts has the addresses of names; a name that is not in it does not exist.
	hosts map[string][]string
	// block, where it is not nil, keeps every answer until it is closed.
	block chan struct{}
}

func (w *world) ask(ctx context.Context, name string) ([]netip.Addr, error) {
	w.mu.Lock()
	w.asked = append(w.asked, name)
	block, texts := w.block, w.hosts[name]
	w.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, &net.DNSError{IsTimeout: true}
		}
	}
	if name == "broken.example" {
		return nil, &net.DNSError{Err: "server misbehaving", Server: "10.9.9.9:53"}
	}
	if texts == nil {
		return nil, &net.DNSError{IsNotFound: true}
	}
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list, nil
}

func (w *world) set(name string, addresses ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts[name] = addresses
}

// blocked keeps every answer until the channel that it returns is closed.
func (w *world) blocked() chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.block = make(chan struct{})
	return w.block
}

func (w *world) questions() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

func own() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("93.184.216.1")}, nil }

// sandbox is a resolver that listens on this machine's loopback.
type sandbox struct {
	world  *world
	names  *resolver.Names
	server *resolver.Server
	udp    netip.AddrPort
	tcp    string
	mu     sync.Mutex
	events []event.Event
}

func (s *sandbox) report(e event.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

// reported returns the events since the last time.
func (s *sandbox) reported() []event.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	s.events = nil
	return events
}

const policyText = `{"schema":1,"domains":["files.example","*.host.example","git.example:22","broken.example","private.example","mixed.example","own.example","metadata.example","gone.example"],"ports":[443],"private":[],"connections":4,"rate":50,"megabytes":1,"names":%d,"upstream":%s}`

func start(t *testing.T, names int, upstream string) *sandbox {
	t.Helper()
	p := must.Get(policy.Parse(fmt.Appendf(nil, policyText, names, upstream)))(t)
	s := &sandbox{world: &world{hosts: map[string][]string{
		"files.example":    {"93.184.216.34", "2606:2800::1"},
		"git.example":      {"93.184.216.35"},
		"a.host.example":   {"93.184.216.36"},
		"private.example":  {"10.0.0.5"},
		"mixed.example":    {"93.184.216.34", "10.0.0.5"},
		"own.example":      {"93.184.216.1"},
		"metadata.example": {"169.254.169.254"},
	}}}
	ask := s.world.ask
	if upstream != "null" {
		ask = nil
	}
	s.names = resolver.NewNames(p, ask, own)
	s.server = resolver.NewServer(s.names, s.report)

	packets := must.Get(net.ListenPacket("udp4", "0.0.0.0:0"))(t).(*net.UDPConn)
	raw := must.Get(packets.SyscallConn())(t)
	must.Do(t, raw.Control(func(fd uintptr) { must.Do(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)) }))
	listener := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t).(*net.TCPListener)
	s.udp = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.53"), packets.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	s.tcp = listener.Addr().String()
	done := make(chan struct{}, 2)
	go func() { s.server.ServeUDP(packets); done <- struct{}{} }()
	go func() { s.server.ServeTCP(listener); done <- struct{}{} }()
	t.Cleanup(func() {
		packets.Close()
		listener.Close()
		<-done
		<-done
	})
	return s
}

// client is Go's own resolver, which reads responses with a parser that is not
// this package's.
func (s *sandbox) client(network string) *net.Resolver {
	return &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		address := s.udp.String()
		if network == "tcp" {
			address = s.tcp
		}
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}}
}

func TestServer_AnswersAllowedNamesAlone(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		s := start(t, 10, "null")
		client := s.client(network)
		for _, test := range []struct {
			name  string
			want  string // an address, or a part of the error
			event []event.Event
		}{
			{name: "files.example.", want: "198.18.0.1"},
			{name: "FILES.example.", want: "198.18.0.1"},
			{name: "git.example.", want: "198.18.0.2"},
			{name: "a.host.example.", want: "198.18.0.3"},
			{name: "localhost.", want: "127.0.0.1"},
			{name: "evil.example.", want: "no such host", event: []event.Event{event.RefusedName("evil.example")}},
			{name: "host.example.", want: "no such host", event: []event.Event{event.RefusedName("host.example")}},
			{name: "private.example.", want: "no such host", event: []event.Event{
				{Kind: event.Refused, Name: "private.example", Reason: event.ByPrivate, Option: "network.private", Value: "10.0.0.0/24", Count: 1}}},
			{name: "mixed.example.", want: "no such host", event: []event.Event{
				{Kind: event.Refused, Name: "mixed.example", Reason: event.ByPrivate, Option: "network.private", Value: "10.0.0.0/24", Count: 1}}},
			{name: "own.example.", want: "no such host", event: []event.Event{{Kind: event.Refused, Name: "own.example", Reason: event.ByPrivate, Count: 1}}},
			{name: "metadata.example.", want: "no such host", event: []event.Event{
				{Kind: event.Refused, Name: "metadata.example", Reason: event.ByPrivate, Option: "network.private", Value: "169.254.169.254/32", Count: 1}}},
			{name: "gone.example.", want: "no such host", event: []event.Event{{Kind: event.Failed, Name: "gone.example", Problem: "no such host", Count: 1}}},
			{name: "1.0.18.198.in-addr.arpa.", want: "no such host"},
		} {
			s.reported()
			addresses, err := client.LookupNetIP(t.Context(), "ip", test.name)
			got := fmt.Sprint(err)
			if err == nil {
				got = strings.Trim(fmt.Sprint(addresses), "[]")
			}
			if !strings.Contains(got, test.want) {
				t.Errorf("%s: %s is answered %s, want %s", network, test.name, got, test.want)
			}
			if diff := cmp.Diff(test.event, s.reported(), compare); diff != "" {
				t.Errorf("%s: events of %s: %s", network, test.name, diff)
			}
		}
		for _, name := range s.world.questions() {
			if !slices.Contains([]string{"files.example", "git.example", "a.host.example", "private.example", "mixed.example", "own.example", "metadata.example", "gone.example"}, name) {
				t.Errorf("%s was asked outside", name)
			}
		}
		if name := s.names.Name(netip.MustParseAddr("::ffff:198.18.0.3")); name != "a.host.example" {
			t.Errorf("198.18.0.3 is %q", name)
		}
		for _, text := range []string{"198.18.0.0", "198.18.1.0", "198.19.255.255", "8.8.8.8", "::1"} {
			if name := s.names.Name(netip.MustParseAddr(text)); name != "" {
				t.Errorf("%s is %q", text, name)
			}
		}
	}
}

func TestServer_AsksForNoOtherTypes(t *testing.T) {
	s := start(t, 10, "null")
	client := s.client("udp")
	if list, err := client.LookupTXT(t.Context(), "secret.host.example."); err == nil {
		t.Errorf("TXT: %v", list)
	}
	if list, err := client.LookupMX(t.Context(), "files.example."); err == nil {
		t.Errorf("MX: %v", list)
	}
	if list, err := client.LookupNetIP(t.Context(), "ip6", "files.example."); err == nil {
		t.Errorf("AAAA: %v", list)
	}
	if diff := cmp.Diff([]string{"files.example"}, s.world.questions()); diff != "" {
		t.Error("asked outside:", diff)
	}
}

// query returns a query for a name in the form of a message.
func query(id uint16, kind uint16, labels ...string) []byte {
	b := binary.BigEndian.AppendUint16(nil, id)
	b = append(b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	for _, label := range labels {
		b = append(append(b, byte(len(label))), label...)
	}
	b = append(b, 0)
	b = binary.BigEndian.AppendUint16(b, kind)
	return binary.BigEndian.AppendUint16(b, 1)
}

// exchange sends queries and returns the first response. Its socket accepts what
// comes from where it sent them to, and nothing else.
func (s *sandbox) exchange(t *testing.T, messages ...[]byte) []byte {
	t.Helper()
	conn := must.Get(net.Dial("udp", s.udp.String()))(t)
	defer conn.Close()
	for _, message := range messages {
		must.Get(conn.Write(message))(t)
	}
	must.Do(t, conn.SetReadDeadline(time.Now().Add(patience.Long)))
	response := make([]byte, 4096)
	n, err := conn.Read(response)
	if err != nil {
		return nil
	}
	return response[:n]
}

func TestServer_KeepsOddNamesInside(t *testing.T) {
	s := start(t, 10, "null")
	label := strings.Repeat("a", 63)
	for _, labels := range [][]string{
		{"evil.example#", "host", "example"}, {"evil.example/", "host", "example"}, {"evil example", "host", "example"}, {"a\x00", "host", "example"},
		{"evil.example.a", "host", "example"}, {"files.example"}, {"a", "host.example"}, {"\xff", "host", "example"}, {"-a", "host", "example"},
		{"127", "0", "0", "1"}, {"bücher", "host", "example"},
		{label, label, label, strings.Repeat("a", 59), "host", "example"}, // 255 bytes of name, which is too long for a host's
	} {
		response := s.exchange(t, query(7, 1, labels...))
		if len(response) < 12 || response[3]&0xf != 1 && response[3]&0xf != 3 {
			t.Errorf("%q is answered % x", labels, response)
		}
	}
	if asked := s.world.questions(); len(asked) != 0 {
		t.Errorf("asked outside: %q", asked)
	}
	// The control: the longest name that a host can have is looked up, and exists.
	long := []string{label, label, label, strings.Repeat("a", 253-3*64-13), "host", "example"}
	s.world.set(strings.Join(long, "."), "93.184.216.34")
	response := s.exchange(t, query(7, 1, long...))
	if len(response) < 12 || response[3]&0xf != 0 || response[7] != 1 {
		t.Errorf("a name of %d bytes is answered % x", len(strings.Join(long, ".")), response)
	}
}

// Whatever bytes a label has, the event of its refusal is one that readers accept.
func TestServer_ReportsEveryByteOfALabel(t *testing.T) {
	s := start(t, 10, "null")
	var stream bytes.Buffer
	writer := event.NewWriter(func(line []byte) bool { stream.Write(line); return true })
	named := 0
	for b := range 256 {
		response := s.exchange(t, query(7, 1, "a"+string([]byte{byte(b)})+"b", "evil", "example"))
		if len(response) < 12 || response[3]&0xf != 3 {
			t.Errorf("byte %d is answered % x", b, response)
		}
		for _, e := range s.reported() {
			writer.Write(e)
		}
	}
	reader := networktest.NewEventReader(&stream)
	for b := range 256 {
		e, err := reader.Read()
		if err != nil || e.Reason != event.ByName {
			t.Fatalf("byte %d: %+v, %v", b, e, err)
		}
		if e.Name != "" {
			named++
		}
	}
	// Those with a name are the letters, digits, "-" and "_".
	if named != 26+26+10+2 {
		t.Errorf("%d events have a name", named)
	}
}

func TestServer_RefusesMessagesThatAreNoQuery(t *testing.T) {
	s := start(t, 10, "null")
	good := query(0x1234, 1, "files", "example")
	change := func(i int, b byte) []byte {
		m := slices.Clone(good)
		m[i] = b
		return m
	}
	for name, test := range map[string]struct {
		message []byte
		code    int // -1: no answer
	}{
		"a query":            {good, 0},
		"empty":              {nil, -1},
		"a short header":     {good[:11], -1},
		"a response":         {change(2, 0x81), -1},
		"a status query":     {change(2, 0x11), 4},
		"no question":        {change(5, 0), 1},
		"two questions":      {change(5, 2), 1},
		"an answer":          {change(7, 1), 1},
		"only a header":      {good[:12], 1},
		"no type":            {good[:len(good)-4], 1},
		"half a class":       {good[:len(good)-1], 1},
		"a pointer":          {append(good[:12:12], 0xc0, 12, 0, 1, 0, 1), 1},
		"a label of 64":      {append(good[:12:12], 64), 1},
		"a label too long":   {append(good[:12:12], 63, 'a', 0, 0, 1, 0, 1), 1},
		"an endless name":    {append(good[:12:12], []byte(strings.Repeat("\x01a", 200)+"\x00\x00\x01\x00\x01")...), 1},
		"too long":           {append(slices.Clone(good), make([]byte, 1300)...), 1},
		"another class":      {change(len(good)-1, 3), 3},
		"an EDNS query":      {append(slices.Clone(change(11, 1)), 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0), 0},
		"the root's servers": {[]byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1}, 3},
	} {
		messages := [][]byte{test.message}
		if test.code < 0 {
			// What is answered first is the query after it.
			messages = append(messages, query(0x4321, 1, "files", "example"))
		}
		response := s.exchange(t, messages...)
		switch {
		case test.code < 0 && (len(response) < 12 || binary.BigEndian.Uint16(response) != 0x4321):
			t.Errorf("%s is answered % x", name, response)
		case test.code >= 0 && (len(response) < 12 || int(response[3]&0xf) != test.code || response[2]&0x80 == 0):
			t.Errorf("%s is answered % x, want code %d", name, response, test.code)
		case name == "an EDNS query" && (response[11] != 1 || binary.BigEndian.Uint16(response[len(response)-10:]) != 41):
			t.Errorf("%s is answered without OPT: % x", name, response)
		}
	}
}

func TestServer_BoundsTheNamesBelowADomain(t *testing.T) {
	s := start(t, 3, "null")
	client := s.client("udp")
	for i := range 10 {
		_, _ = client.LookupNetIP(t.Context(), "ip", fmt.Sprintf("n%d.host.example.", i))
	}
	if diff := cmp.Diff([]string{"n0.host.example", "n1.host.example", "n2.host.example"}, s.world.questions()); diff != "" {
		t.Error(diff)
	}
	events := s.reported()
	if last := events[len(events)-1]; last.Reason != event.ByLimit || last.Option != "network.names" || last.Name != "n9.host.example" {
		t.Errorf("the last event is %v", last)
	}
	// Names that the policy contains need none of them.
	if got, err := client.LookupNetIP(t.Context(), "ip4", "files.example."); err != nil {
		t.Errorf("files.example: %v, %v", got, err)
	}
}

func TestServer_StaysUpWhereItsResolverNeverAnswers(t *testing.T) {
	s := start(t, 1000, "null")
	block := s.world.blocked()
	conn := must.Get(net.Dial("udp", s.udp.String()))(t)
	defer conn.Close()
	for i := range 1000 {
		must.Get(conn.Write(query(uint16(i), 1, fmt.Sprintf("n%d", i), "host", "example")))(t)
		if i%200 == 0 {
			// Refusals are answered meanwhile, and the queue of the socket empties.
			if response := s.exchange(t, query(7, 1, "evil", "example")); len(response) < 12 || response[3]&0xf != 3 {
				t.Fatalf("a refusal among %d waiting queries: % x", i, response)
			}
		}
	}
	if asked := len(s.world.questions()); asked == 0 || asked > 16 {
		t.Errorf("%d look-ups go on at once", asked)
	}
	close(block)
}

func TestServer_BoundsTCP(t *testing.T) {
	s := start(t, 10, "null")
	// Sessions that send nothing, and one that sends half a query.
	var sessions []net.Conn
	for range 8 {
		conn := must.Get(net.Dial("tcp", s.tcp))(t)
		defer conn.Close()
		sessions = append(sessions, conn)
	}
	must.Get(sessions[0].Write([]byte{0, 40, 1}))(t)
	ninth := must.Get(net.Dial("tcp", s.tcp))(t)
	defer ninth.Close()
	must.Do(t, ninth.SetReadDeadline(time.Now().Add(patience.Long)))
	if n, err := ninth.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the ninth session reads %d bytes, %v", n, err)
	}
	// A session that ends gives its slot back, and an announced length that is too
	// long ends a session.
	must.Get(sessions[1].Write([]byte{0xff, 0xff}))(t)
	must.Do(t, sessions[1].SetReadDeadline(time.Now().Add(patience.Long)))
	if _, err := sessions[1].Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a length of 65535: %v", err)
	}
	message := query(7, 1, "files", "example")
	framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
	count := 0
	for {
		if _, err := sessions[2].Write(framed); err != nil {
			break
		}
		var size [2]byte
		if _, err := io.ReadFull(sessions[2], size[:]); err != nil {
			break
		}
		must.Get(io.CopyN(io.Discard, sessions[2], int64(binary.BigEndian.Uint16(size[:]))))(t)
		count++
	}
	if count != 100 {
		t.Errorf("a session takes %d queries", count)
	}
}

func TestServer_WithAnUpstreamLooksNothingUp(t *testing.T) {
	s := start(t, 10, `"http://proxy.example:3128"`)
	client := s.client("udp")
	got, err := client.LookupNetIP(t.Context(), "ip", "gone.example.")
	if err != nil || len(got) != 1 || got[0] != netip.MustParseAddr("198.18.0.1") {
		t.Errorf("gone.example: %v, %v", got, err)
	}
	if _, err := client.LookupNetIP(t.Context(), "ip", "evil.example."); err == nil {
		t.Error("evil.example is answered")
	}
}

func TestNames_ResolveEachNameOnceAtATime(t *testing.T) {
	s := start(t, 10, "null")
	block := s.world.blocked()
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			if got, err := s.names.Resolve(t.Context(), "files.example"); err != nil || len(got) != 2 {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	for len(s.world.questions()) == 0 {
		time.Sleep(time.Millisecond)
	}
	close(block)
	wait.Wait()
	if n := len(s.world.questions()); n != 1 {
		t.Errorf("%d questions", n)
	}
	s.names.Forget("files.example")
	must.Get(s.names.Resolve(t.Context(), "files.example"))(t)
	if n := len(s.world.questions()); n != 2 {
		t.Errorf("%d questions after the name was forgotten", n)
	}
	if _, err := s.names.Resolve(t.Context(), "evil.example"); !errors.Is(err, resolver.ErrNotAllowed) {
		t.Errorf("evil.example: %v", err)
	}
	if _, err := s.names.Resolve(t.Context(), "broken.example"); !errors.Is(err, resolver.ErrNoAnswer) || strings.Contains(err.Error(), "10.9.9.9") {
		t.Errorf("broken.example: %v", err)
	}
}

// The race detector finds an entry that is read while another look-up fills it.
func TestNames_ResolveWhileANameIsLookedUpAnew(t *testing.T) {
	s := start(t, 10, "null")
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for range 500 {
				if got, err := s.names.Resolve(t.Context(), "files.example"); err != nil || len(got) != 2 {
					t.Errorf("%v, %v", got, err)
				}
				s.names.Forget("files.example")
			}
		})
	}
	wait.Wait()
}

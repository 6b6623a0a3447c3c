package carrier

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

// port is the machine's end of a port, and outside begins an outside of it.
func port(t *testing.T) (inside net.Conn, outside func()) {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { here.Close(); there.Close() })
	return here, func() { go func() { _ = Outside(there, nil, Dial) }() }
}

// nowhere dials no address.
func nowhere(netip.AddrPort) (*net.TCPConn, error) { return nil, errors.New("nowhere") }

// echo sends back each byte.
func echo(t *testing.T) *net.TCPListener {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t).(*net.TCPListener)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	return l
}

func greeted(t *testing.T, i *Inside) {
	t.Helper()
	patience.Until(t, "the outside greets", func() bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.session != nil
	})
}

// A connection is carried both ways, with the end of each direction.
func TestCarrier_CarriesConnections(t *testing.T) {
	inside, outside := port(t)
	i := NewInside(inside, ignore)
	outside()
	must.Do(t, i.Begin())
	greeted(t, i)
	target := echo(t).Addr().(*net.TCPAddr).AddrPort()
	for n := range 50 {
		stream := must.Get(i.open(target))(t)
		want := bytes.Repeat([]byte(fmt.Sprint(n)), 40_000)
		go func() {
			_, _ = stream.Write(want)
			stream.Close()
		}()
		if got := must.Get(io.ReadAll(stream))(t); !bytes.Equal(got, want) {
			t.Fatalf("%d of %d bytes came back", len(got), len(want))
		}
	}
}

// The certificates of each outside come before its connections, however they are cut.
func TestCarrier_BringsCertificates(t *testing.T) {
	inside, outside := net.Pipe()
	defer inside.Close()
	defer outside.Close()
	var got []string
	i := NewInside(inside, func(certificates []byte) error {
		got = append(got, string(certificates))
		return nil
	})
	if err := i.AwaitTrust(time.Millisecond); err == nil {
		t.Error("there are certificates before any outside")
	}
	for n, want := range []string{"first", strings.Repeat("long ", 50_000)} {
		go func() { _ = Outside(outside, []byte(want), nowhere) }()
		must.Do(t, i.Begin())
		must.Do(t, i.AwaitTrust(time.Minute))
		greeted(t, i)
		if len(got) != n+1 || got[n] != want {
			t.Fatalf("outside %d brings %d texts", n, len(got))
		}
		if n == 0 { // another outside at the same port
			inside.Close()
			outside.Close()
			inside, outside = net.Pipe()
			i = NewInside(inside, i.trust)
		}
	}
}

// A length that no certificates have ends the conversation.
func TestCarrier_RefusesLongCertificates(t *testing.T) {
	inside, outside := net.Pipe()
	defer outside.Close()
	i := NewInside(inside, func([]byte) error { t.Error("they are taken"); return nil })
	go func() { _, _ = io.Copy(io.Discard, outside) }()
	must.Do(t, i.Begin())
	i.take(binary.BigEndian.AppendUint32(i.wanted, maxCertificates+1))
	i.take(make([]byte, 1<<20))
	if err := i.AwaitTrust(time.Millisecond); err == nil || len(i.seen) > 0 || i.session != nil {
		t.Errorf("error %v, %d bytes are kept", err, len(i.seen))
	}
}

// A machine that goes on with another outside has a piece of the former conversation in its port.
func TestCarrier_BeginsAgain(t *testing.T) {
	inside, outside := port(t)
	i := NewInside(inside, ignore)
	outside()
	stale := append([]byte("\x00\x00stale"), greeting[:5]...)
	must.Get(inside.Write(stale))(t)
	must.Do(t, i.Begin())
	greeted(t, i)
	stream := must.Get(i.open(echo(t).Addr().(*net.TCPAddr).AddrPort()))(t)
	must.Get(stream.Write([]byte("again")))(t)
	got := make([]byte, 5)
	must.Get(io.ReadFull(stream, got))(t)
	// Bytes of the former outside are passed over too.
	i.mu.Lock()
	i.wanted = append([]byte(string(greeting)), bytes.Repeat([]byte{7}, numberBytes)...)
	first := i.session
	i.trusted = make(chan struct{})
	i.mu.Unlock()
	i.take([]byte("stale"))
	i.take(append([]byte(string(greeting)), bytes.Repeat([]byte{6}, numberBytes)...))
	i.take(append([]byte("stale"), i.wanted[:20]...))
	i.take(append(i.wanted[20:], 0, 0, 0, 0))
	if string(got) != "again" || i.session == first || i.wanted != nil {
		t.Errorf("%q came back; a new session: %v", got, i.session != first)
	}
}

// Before the outside greets, and after it has gone, connections are refused and do not wait.
func TestCarrier_RefusesWithoutAnOutside(t *testing.T) {
	inside, _ := port(t)
	i := NewInside(inside, ignore)
	if _, err := i.open(echo(t).Addr().(*net.TCPAddr).AddrPort()); err == nil {
		t.Error("a stream is opened")
	}
}

// Everything but a greeting and streams ends the outside.
func TestOutside_WithstandsNonsense(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":          "",
		"no greeting":      strings.Repeat("x", 100_000),
		"half a greeting":  string(greeting[:10]),
		"no number":        string(greeting),
		"no frames":        string(greeting) + strings.Repeat("n", numberBytes) + strings.Repeat("\xff", 1000),
		"a frame too long": string(greeting) + strings.Repeat("n", numberBytes) + "\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff\xff\xff" + strings.Repeat("x", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			here, there := net.Pipe()
			ended := make(chan error, 1)
			go func() { ended <- Outside(there, nil, nowhere) }()
			go func() { _, _ = io.Copy(io.Discard, here) }()
			_ = here.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(here, text)
			here.Close()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("no error")
				}
			case <-time.After(patience.Long):
				t.Error("it goes on")
			}
		})
	}
}

// A look-up goes as one of TCP, and its answer comes from the address that was asked.
func TestInside_CarriesLookUps(t *testing.T) {
	// In this namespace the resolver of the test is the outside's, at the same address and port as the inside's socket.
	packets := must.Get(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	at := packets.LocalAddr().(*net.UDPAddr).AddrPort()
	raw := must.Get(packets.SyscallConn())(t)
	must.Do(t, raw.Control(func(fd uintptr) {
		must.Do(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1))
	}))
	resolver, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(at.Port())})
	if err != nil {
		t.Skipf("the port of TCP is taken: %v", err)
	}
	defer resolver.Close()
	go func() {
		for {
			c, err := resolver.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var size [2]byte
				if _, err := io.ReadFull(c, size[:]); err != nil {
					return
				}
				query := make([]byte, binary.BigEndian.Uint16(size[:]))
				_, _ = io.ReadFull(c, query)
				answer := append([]byte("answer to "), query...)
				_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
			}()
		}
	}()
	inside, outside := port(t)
	i := NewInside(inside, ignore)
	outside()
	must.Do(t, i.Begin())
	greeted(t, i)
	file := must.Get(packets.File())(t)
	packets.Close()
	given := false
	must.Do(t, i.Accept(func() (handover.Socket, *os.File, error) {
		if given {
			return handover.Socket{}, nil, io.EOF
		}
		given = true
		return handover.Socket{Protocol: handover.UDP, Port: at.Port()}, file, nil
	}))
	asker := must.Get(net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at)))(t)
	defer asker.Close()
	must.Get(asker.Write([]byte("who")))(t)
	_ = asker.SetReadDeadline(time.Now().Add(patience.Long))
	buffer := make([]byte, 100)
	n, err := asker.Read(buffer)
	if err != nil || string(buffer[:n]) != "answer to who" {
		t.Errorf("%q, %v", buffer[:n], err)
	}
	if err := i.Accept(func() (handover.Socket, *os.File, error) { return handover.Socket{}, nil, errors.New("broken") }); err == nil {
		t.Error("a broken hand-over is taken")
	}
}

// Whatever a machine sends, the outside ends with it.
func FuzzOutside(f *testing.F) {
	begun := string(greeting) + strings.Repeat("n", numberBytes)
	f.Add([]byte(begun))
	f.Add([]byte(begun + "\x00\x01\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x12" + strings.Repeat("\x00", 18)))
	f.Add([]byte(begun + "\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		here, there := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = Outside(there, nil, nowhere)
		}()
		go func() { _, _ = io.Copy(io.Discard, here) }()
		_ = here.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = here.Write(sent)
		here.Close()
		select {
		case <-ended:
		case <-time.After(patience.Long):
			t.Error("it goes on")
		}
	})
}

// Whatever the outside sends, the machine goes on and can begin again.
func FuzzInside(f *testing.F) {
	f.Add([]byte(string(greeting)), []byte("x"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		i := NewInside(here, ignore)
		must.Do(t, i.Begin())
		i.take(first)
		i.mu.Lock()
		wanted := i.wanted
		i.mu.Unlock()
		i.take(append(bytes.Clone(wanted), second...))
		must.Do(t, i.Begin())
	})
}

// ignore takes certificates that a test is not about.
func ignore([]byte) error { return nil }

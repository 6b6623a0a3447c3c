package carrier

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

// Inside is the side of the machine. Its methods may be called at the same time.
type Inside struct {
	port    io.ReadWriter
	streams chan struct{}

	mu      sync.Mutex
	session *yamux.Session // nil until the outside has greeted
	input   *io.PipeWriter // of the session
	wanted  []byte         // the greeting that is to come, or nil
	seen    []byte         // that came while it is wanted
	trusted chan struct{}  // closed when the certificates are there
	trust   func(certificates []byte) error
}

// NewInside carries over a port of the machine, from the first [Inside.Begin] on. It calls trust with the
// certificates of each outside.
func NewInside(port io.ReadWriter, trust func(certificates []byte) error) *Inside {
	i := &Inside{port: port, trust: trust, trusted: make(chan struct{}), streams: make(chan struct{}, maxStreams)}
	go i.read()
	return i
}

// Begin begins with an outside that is new. Connections of an earlier one end.
func (i *Inside) Begin() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.session != nil {
		i.input.Close()
		i.session.Close()
		i.session = nil
	}
	select {
	case <-i.trusted:
		i.trusted = make(chan struct{})
	default:
	}
	number := make([]byte, numberBytes)
	rand.Read(number)
	i.wanted, i.seen = append(slices.Clone(greeting), number...), nil
	_, err := i.port.Write(i.wanted)
	return err
}

// AwaitTrust waits until the certificates of the outside are there.
func (i *Inside) AwaitTrust(limit time.Duration) error {
	i.mu.Lock()
	trusted := i.trusted
	i.mu.Unlock()
	select {
	case <-trusted:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("the proxy of the network sent no certificates within %v", limit)
	}
}

// read passes input to the session, after its greeting.
func (i *Inside) read() {
	buffer := make([]byte, 32<<10)
	for {
		n, err := i.port.Read(buffer)
		if n > 0 {
			i.take(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}

func (i *Inside) take(data []byte) {
	i.mu.Lock()
	if i.wanted != nil {
		i.seen = append(i.seen, data...)
		rest, err := i.greeted()
		if rest != nil || err != nil {
			i.wanted, i.seen = nil, nil
		}
		if rest == nil || err != nil {
			i.mu.Unlock()
			return
		}
		data = rest
		close(i.trusted)
		var output *io.PipeReader
		output, i.input = io.Pipe()
		session, err := yamux.Client(conn{output, i.port}, settings())
		if err != nil {
			i.mu.Unlock()
			return
		}
		i.session = session
	}
	input := i.input
	i.mu.Unlock()
	if input != nil {
		_, _ = input.Write(data) // the session may have ended
	}
}

// greeted takes greeting and certificates, and returns the bytes after them, or nil if there is more to come. After
// an error the outside is not heard.
func (i *Inside) greeted() (rest []byte, err error) {
	at := bytes.Index(i.seen, i.wanted)
	if at < 0 {
		i.seen = slices.Clone(i.seen[max(0, len(i.seen)-len(i.wanted)+1):])
		return nil, nil
	}
	i.seen = i.seen[at:]
	text := i.seen[len(i.wanted):]
	if len(text) < 4 {
		return nil, nil
	}
	size := binary.BigEndian.Uint32(text)
	if size > maxCertificates {
		return nil, fmt.Errorf("there are %d bytes of certificates", size)
	}
	if text = text[4:]; uint32(len(text)) < size {
		return nil, nil
	}
	return text[size:], i.trust(text[:size])
}

// conn is the connection of a session.
type conn struct {
	*io.PipeReader
	out io.Writer
}

func (c conn) Write(p []byte) (int, error) { return c.out.Write(p) }

// Accept takes sockets of the sandbox's network until next returns io.EOF, and carries their connections.
func (i *Inside) Accept(next func() (handover.Socket, *os.File, error)) error {
	for {
		socket, file, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if socket.Protocol == handover.UDP {
			packets, err := net.FilePacketConn(file)
			file.Close()
			if err != nil {
				return fmt.Errorf("use %s port %d: %w", socket.Protocol, socket.Port, err)
			}
			go i.lookups(packets.(*net.UDPConn), socket.Port)
			continue
		}
		listener, err := net.FileListener(file)
		file.Close()
		if err != nil {
			return fmt.Errorf("use %s port %d: %w", socket.Protocol, socket.Port, err)
		}
		go i.connections(listener.(*net.TCPListener))
	}
}

func (i *Inside) connections(listener *net.TCPListener) {
	for {
		i.streams <- struct{}{}
		one, err := listener.AcceptTCP()
		if err != nil {
			<-i.streams
			return
		}
		go func() {
			defer func() { <-i.streams }()
			stream, err := i.open(one.LocalAddr().(*net.TCPAddr).AddrPort())
			if err != nil {
				_ = one.SetLinger(0)
				one.Close()
				return
			}
			join(one, stream)
		}()
	}
}

// open opens a stream to an address.
func (i *Inside) open(to netip.AddrPort) (*yamux.Stream, error) {
	i.mu.Lock()
	session := i.session
	i.mu.Unlock()
	if session == nil {
		return nil, errors.New("the outside has not greeted")
	}
	stream, err := session.OpenStream()
	if err != nil {
		return nil, err
	}
	address := to.Addr().As16()
	if _, err := stream.Write(binary.BigEndian.AppendUint16(address[:], to.Port())); err != nil {
		stream.Close()
		return nil, err
	}
	return stream, nil
}

// lookups carries each packet over a connection of its own, as DNS has it over TCP.
func (i *Inside) lookups(packets *net.UDPConn, port uint16) {
	buffer, extra := make([]byte, maxQuery), make([]byte, 128)
	for {
		n, m, _, from, err := packets.ReadMsgUDPAddrPort(buffer, extra)
		if err != nil {
			return
		}
		to, ok := meant(extra[:m])
		select {
		case i.streams <- struct{}{}:
		default:
			continue // the program will ask again
		}
		query := slices.Clone(buffer[:n])
		go func() {
			defer func() { <-i.streams }()
			if !ok {
				return
			}
			if answer, err := i.lookUp(netip.AddrPortFrom(to, port), query); err == nil {
				source := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: to.As4()})
				_, _, _ = packets.WriteMsgUDPAddrPort(answer, source, from)
			}
		}()
	}
}

// meant returns the address to which a packet was sent.
func meant(control []byte) (netip.Addr, bool) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}, false
	}
	for _, message := range messages {
		// struct in_pktinfo: the interface, the local address, and the one in the packet (ip(7)).
		if message.Header.Level == unix.IPPROTO_IP && message.Header.Type == unix.IP_PKTINFO && len(message.Data) >= 12 {
			return netip.AddrFrom4([4]byte(message.Data[8:12])), true
		}
	}
	return netip.Addr{}, false
}

func (i *Inside) lookUp(to netip.AddrPort, query []byte) ([]byte, error) {
	stream, err := i.open(to)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	_ = stream.SetDeadline(time.Now().Add(queryTimeout))
	if _, err := stream.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(stream, size[:]); err != nil {
		return nil, err
	}
	answer := make([]byte, min(int(binary.BigEndian.Uint16(size[:])), maxQuery))
	_, err = io.ReadFull(stream, answer)
	return answer, err
}

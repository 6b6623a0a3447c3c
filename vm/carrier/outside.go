package carrier

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// dialTimeout bounds a connection to the proxy, which is in the same network namespace.
	dialTimeout = 10 * time.Second
	// maxStale bounds the rest of an earlier conversation in the port, in bytes.
	maxStale = 64 << 20
)

// Outside gives a machine certificates, and makes its connections once more with dial, until the machine ends or
// breaks a rule.
func Outside(machine io.ReadWriteCloser, certificates []byte, dial func(netip.AddrPort) (*net.TCPConn, error)) error {
	defer machine.Close()
	met, err := greetingOf(machine)
	if err != nil {
		return err
	}
	met = binary.BigEndian.AppendUint32(met, uint32(len(certificates)))
	if _, err := machine.Write(append(met, certificates...)); err != nil {
		return fmt.Errorf("greet the machine: %w", err)
	}
	session, err := yamux.Server(machine, settings())
	if err != nil {
		return err
	}
	defer session.Close()
	streams := make(chan struct{}, maxStreams)
	for {
		streams <- struct{}{}
		stream, err := session.AcceptStream()
		if err != nil {
			return fmt.Errorf("the machine's connections: %w", err)
		}
		go func() {
			defer func() { <-streams }()
			connect(stream, dial)
		}()
	}
}

// greetingOf reads up to the end of a greeting, and returns it. It reads no further: the rest is the session's.
func greetingOf(machine io.Reader) ([]byte, error) {
	var last []byte
	one := make([]byte, 1)
	for range maxStale {
		if _, err := io.ReadFull(machine, one); err != nil {
			return nil, fmt.Errorf("read the machine's greeting: %w", err)
		}
		if last = append(last, one[0]); len(last) > len(greeting) {
			last = last[1:]
		}
		if bytes.Equal(last, greeting) {
			number := make([]byte, numberBytes)
			if _, err := io.ReadFull(machine, number); err != nil {
				return nil, fmt.Errorf("read the machine's greeting: %w", err)
			}
			return append(last, number...), nil
		}
	}
	return nil, fmt.Errorf("the machine sent %d bytes and no greeting", maxStale)
}

// connect makes the connection of a stream.
func connect(stream *yamux.Stream, dial func(netip.AddrPort) (*net.TCPConn, error)) {
	defer stream.Close()
	var address [18]byte
	_ = stream.SetReadDeadline(time.Now().Add(dialTimeout))
	if _, err := io.ReadFull(stream, address[:]); err != nil {
		return
	}
	_ = stream.SetReadDeadline(time.Time{})
	to := netip.AddrPortFrom(netip.AddrFrom16([16]byte(address[:16])).Unmap(), binary.BigEndian.Uint16(address[16:]))
	if conn, err := dial(to); err == nil {
		join(conn, stream)
	}
}

// Dial connects in this process's network namespace.
func Dial(to netip.AddrPort) (*net.TCPConn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).Dial("tcp", to.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

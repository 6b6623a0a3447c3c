package relay

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

// firstRead is how many bytes of a direction are read to tell TLS from other protocols. The kernel
// carries the rest (splice(2)).
const firstRead = 4096

// carry connects to the host and carries bytes both ways until both directions have ended. If the
// client speaks TLS, carry checks the host's name in it before any byte reaches the host.
func (c *connection) carry() {
	var hello []byte
	if c.asked.Port() == policy.PortHTTPS {
		// Refused connections are never dialled.
		var ok bool
		if hello, ok = c.hello(c.client); !ok {
			return
		}
	}
	server := c.connect()
	if server == nil {
		return
	}
	defer server.Close()
	h := &handshake{again: make(chan bool, 1)}
	h.expected.Store(hello != nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !c.carryUp(server, hello, h) {
			c.abort(server)
		}
	}()
	if !c.carryDown(server, h) {
		c.abort(server)
	}
	<-done
}

// abort resets both sides, so that neither takes a part for the whole.
func (c *connection) abort(server *net.TCPConn) {
	reset(c.client)
	reset(server)
}

// handshake synchronizes the two directions of a connection.
type handshake struct {
	// expected says that the client's first message is a ClientHello.
	expected atomic.Bool
	// again has one value as soon as the server's first bytes are known: whether it
	// asks for a second ClientHello.
	again chan bool
}

// carryUp carries bytes from the client. hello is its ClientHello if that was already read. It
// returns false if the connection must be reset.
func (c *connection) carryUp(server *net.TCPConn, hello []byte, h *handshake) bool {
	client := &replay{TCPConn: c.client}
	if hello == nil {
		first, err := c.first(c.client, c.r.times.idle)
		if err != nil {
			return c.end(server, err)
		}
		client.first = first
		if first[0] == recordHandshake {
			h.expected.Store(true)
			var ok bool
			if hello, ok = c.hello(client); !ok {
				return false
			}
		}
	}
	if hello != nil {
		if !c.send(server, hello, &c.up) {
			return false
		}
		// The server answers before anything else is sent, because its answer may ask for a second
		// ClientHello, and the name in that must be checked too.
		if <-h.again {
			_ = c.client.SetReadDeadline(time.Now().Add(c.r.times.hello))
			second, err := readSecondHello(client, c.name)
			if !c.accepts(true, err) || !c.send(server, second, &c.up) {
				return false
			}
		}
	}
	return c.send(server, client.first, &c.up) && c.splice(server, c.client, &c.up)
}

// replay is a connection that returns bytes again that were already read from it.
type replay struct {
	*net.TCPConn
	first []byte
}

func (r *replay) Read(b []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(b, r.first)
		r.first = r.first[n:]
		return n, nil
	}
	return r.TCPConn.Read(b)
}

// carryDown carries bytes from the server. It returns false if the connection must be reset.
func (c *connection) carryDown(server *net.TCPConn, h *handshake) bool {
	within := c.r.times.idle
	if h.expected.Load() {
		// The client can do nothing before the server has answered its hello.
		within = c.r.times.answer
	}
	first, err := c.first(server, within)
	if errors.Is(err, os.ErrDeadlineExceeded) && h.expected.Load() {
		c.r.report(c.explain(err))
	}
	again := false
	if err == nil && h.expected.Load() {
		again, first, err = c.passHello(server, first)
	}
	h.again <- again
	if !c.send(c.client, first, &c.down) || err != nil {
		return c.end(c.client, err)
	}
	return c.splice(c.client, server, &c.down)
}

// passHello passes on what a server sends until the beginning of its ServerHello is known,
// which may come after other records and in several, and reports whether it asks for a
// second ClientHello. It returns what is left of first.
func (c *connection) passHello(server *net.TCPConn, first []byte) (again bool, rest []byte, err error) {
	in := &replay{TCPConn: server, first: first}
	var message []byte
	for passed := 0; len(message) < helloRetrySize; {
		record, err := readPart(in, helloRetrySize-len(message))
		if !c.send(c.client, record, &c.down) {
			return false, nil, errExceeded
		}
		if err != nil || !mayPrecedeHello(record[0]) {
			return false, in.first, err
		}
		if record[0] == recordHandshake {
			message = append(message, record[recordHeader:]...)
		}
		passed += len(record)
		// No server sends another message first, nor this much.
		if len(message) > 0 && message[0] != messageServerHello || passed > maxEarly {
			return false, nil, errRecord
		}
	}
	return asksAgain(message), in.first, nil
}

// readPart reads a record of TLS: of a handshake record as much as most bytes of its
// content, and of anything but TLS as much as a record's header.
func readPart(in io.Reader, most int) (record []byte, err error) {
	record = make([]byte, recordHeader)
	n, err := io.ReadFull(in, record)
	if err == nil && mayPrecedeHello(record[0]) {
		size := int(binary.BigEndian.Uint16(record[3:]))
		if record[0] == recordHandshake {
			size = min(size, most)
		}
		record = append(record, make([]byte, size)...)
		var m int
		m, err = io.ReadFull(in, record[recordHeader:])
		n += m
	}
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return record[:n], err
}

// mayPrecedeHello reports whether a record of this type may come before the end of a
// ServerHello.
func mayPrecedeHello(kind byte) bool {
	return kind == recordHandshake || kind == recordChangeCipher || kind == recordAlert
}

// first returns the first bytes that come from one end, while no byte of the connection
// is as old as within.
func (c *connection) first(from *net.TCPConn, within time.Duration) ([]byte, error) {
	buffer := make([]byte, firstRead)
	for {
		_ = from.SetReadDeadline(time.Now().Add(within))
		n, err := from.Read(buffer)
		if n > 0 {
			return buffer[:n], nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || c.idle(within) {
			return nil, err
		}
	}
}

// end passes on the end of a direction, and returns false if the end was an error.
func (c *connection) end(to *net.TCPConn, err error) bool {
	if !errors.Is(err, io.EOF) {
		return false
	}
	_ = to.CloseWrite()
	return true
}

// idle returns whether no byte came for a time.
func (c *connection) idle(within time.Duration) bool {
	return time.Since(c.began)-time.Duration(c.active.Load()) >= within
}

// splice carries bytes in one direction until its end, which it passes on. It returns false if the
// connection must be reset.
func (c *connection) splice(to, from *net.TCPConn, count *atomic.Int64) bool {
	for {
		piece := c.r.bytes.Piece()
		if piece == 0 {
			c.exceed()
			return false
		}
		_ = from.SetReadDeadline(time.Now().Add(c.r.times.idle))
		n, err := io.CopyN(to, from, piece)
		switch {
		case !c.count(n, count):
			return false
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && !c.idle(c.r.times.idle):
			// The other direction carries bytes, or this one does so slowly.
		default:
			return c.end(to, err)
		}
	}
}

// send writes bytes that were read for a check.
func (c *connection) send(to *net.TCPConn, bytes []byte, count *atomic.Int64) bool {
	if len(bytes) == 0 {
		return true
	}
	n, err := to.Write(bytes)
	return c.count(int64(n), count) && err == nil
}

// count counts bytes. If the sandbox has used up all of its bytes, it reports that and returns
// false.
func (c *connection) count(n int64, count *atomic.Int64) bool {
	if n == 0 {
		return true
	}
	count.Add(n)
	c.active.Store(int64(time.Since(c.began)))
	if c.r.bytes.Use(n) {
		return true
	}
	c.exceed()
	return false
}

// exceed reports once that the sandbox has used all its bytes up.
func (c *connection) exceed() {
	c.exceeded.Do(func() { c.r.report(event.Limited(c.name, c.asked.Port(), event.OptionMegabytes)) })
}

// hello reads the client's first message and reports a refusal.
func (c *connection) hello(client io.Reader) ([]byte, bool) {
	_ = c.client.SetReadDeadline(time.Now().Add(c.r.times.hello))
	hello, err := readHello(client, c.name)
	return hello, c.accepts(len(hello) > 0, err)
}

// accepts reports and refuses a wrong ClientHello. spoke says whether the client sent anything: a
// client that only connects has nothing that could be refused.
func (c *connection) accepts(spoke bool, err error) bool {
	if err == nil {
		return true
	}
	var refused *helloError
	switch {
	case errors.As(err, &refused):
	case spoke && (errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF)):
		refused = &helloError{event.ByNotTLS}
	default:
		reset(c.client)
		return false
	}
	c.r.report(c.because(refused.reason))
	if refused.reason == event.ByNotTLS {
		reset(c.client)
	} else {
		c.alert()
	}
	return false
}

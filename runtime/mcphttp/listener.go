package mcphttp

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// bounded returns a listener that has at most n connections open. Further ones wait in
// the listener's queue. A connection on which nothing has come yet is taken for an idle
// one.
func bounded(listener net.Listener, n int) net.Listener {
	return &boundedListener{Listener: listener, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

type boundedListener struct {
	net.Listener
	slots  chan struct{} // contains an element for each connection
	closed chan struct{}
	once   sync.Once
}

func (l *boundedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &boundedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.slots })}, nil
}

func (l *boundedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type boundedConn struct {
	net.Conn
	release  func()
	hasBegun atomic.Bool // something has come
}

// SetReadDeadline implements [net.Conn]. The time for the first head begins with its
// first byte. For net/http it begins with the connection: clients that connect before
// they have a request would lose the one that they send when this time is over.
func (c *boundedConn) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && !c.hasBegun.Load() {
		t = time.Now().Add(connectionIdle)
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *boundedConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if n > 0 && !c.hasBegun.Swap(true) {
		_ = c.Conn.SetReadDeadline(time.Now().Add(headTimeout)) // where it fails, so does the next read
	}
	return n, err
}

func (c *boundedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

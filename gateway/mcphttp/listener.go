package mcphttp

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// newFor is how long a connection may have no answer and count as one whose first request
// is on its way. It is what net/http takes for it, too.
const newFor = 5 * time.Second

// bounded returns a listener that has at most n connections open. Further ones wait in
// the listener's queue. A connection on which nothing has come yet is taken for an idle
// one.
func bounded(listener net.Listener, n int) *boundedListener {
	return &boundedListener{Listener: listener, slots: make(chan struct{}, n), closed: make(chan struct{}), unanswered: map[*boundedConn]bool{}}
}

type boundedListener struct {
	net.Listener
	slots  chan struct{} // contains an element for each connection
	closed chan struct{}
	once   sync.Once

	mu         sync.Mutex
	unanswered map[*boundedConn]bool // open connections on which nothing was written
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
	c := &boundedConn{Conn: conn, accepted: time.Now(), answered: make(chan struct{})}
	c.answer = sync.OnceFunc(func() {
		close(c.answered)
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.unanswered, c)
	})
	c.release = sync.OnceFunc(func() { <-l.slots })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unanswered[c] = true
	return c, nil
}

func (l *boundedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// settle waits until each connection that is new has its first answer, is closed, or is
// not new any more, or until ctx ends.
func (l *boundedListener) settle(ctx context.Context) {
	l.mu.Lock()
	waiting := slices.Collect(maps.Keys(l.unanswered))
	l.mu.Unlock()
	for _, c := range waiting {
		select {
		case <-c.answered:
		case <-time.After(newFor - time.Since(c.accepted)):
		case <-ctx.Done():
			return
		}
	}
}

type boundedConn struct {
	net.Conn
	accepted time.Time
	answered chan struct{} // closed by answer
	answer   func()
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

func (c *boundedConn) Write(data []byte) (int, error) {
	c.answer()
	return c.Conn.Write(data)
}

func (c *boundedConn) Close() error {
	defer c.release()
	c.answer()
	return c.Conn.Close()
}

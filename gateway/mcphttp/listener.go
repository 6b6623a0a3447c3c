package mcphttp

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// newFor is how long an unanswered connection counts as new, because its first request may be
// on its way. net/http uses the same time.
const newFor = 5 * time.Second

// idleFor is how long a connection without a request keeps its place if others come.
const idleFor = time.Second

// settlePause is the time between two looks for new connections without an answer.
const settlePause = 10 * time.Millisecond

// bounded returns a listener that has at most so many connections open. A further one takes
// the place of the one that has had no request for longest, and waits for that if need be.
func bounded(listener net.Listener, most int) *boundedListener {
	return &boundedListener{Listener: listener, most: most, freed: make(chan struct{}, 1), closed: make(chan struct{}), open: map[*boundedConn]time.Time{}}
}

type boundedListener struct {
	net.Listener
	most   int
	freed  chan struct{} // gets an element when a connection is closed
	closed chan struct{}
	once   sync.Once

	mu sync.Mutex
	// open are the open connections, and since when they have no request; zero if they have one. A
	// request counts when its head has come: until then, anyone could have sent its beginning.
	open map[*boundedConn]time.Time
}

func (l *boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &boundedConn{Conn: conn, listener: l, accepted: time.Now()}
	for !l.admit(c) {
		select {
		case <-l.freed:
		case <-time.After(idleFor / 10):
		case <-l.closed:
			conn.Close()
			return nil, net.ErrClosed
		}
	}
	return c, nil
}

// admit adds a connection, and reports whether there was room for it. If not, it closes the one that
// has been idle for longest, unless all others may have a request on its way.
func (l *boundedListener) admit(c *boundedConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) < l.most {
		l.open[c] = time.Time{}
		return true
	}
	var longest *boundedConn
	before := time.Now().Add(-idleFor)
	for one, since := range l.open {
		if !since.IsZero() && since.Before(before) {
			longest, before = one, since
		}
	}
	if longest != nil {
		l.open[longest] = time.Time{}
		go longest.Close()
	}
	return false
}

// note notes since when an open connection has no request; zero if it has one.
func (l *boundedListener) note(c *boundedConn, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, isOpen := l.open[c]; isOpen {
		l.open[c] = since
	}
}

// noteState notes which connections are idle. It is the ConnState of an [http.Server], for which a
// connection is active from the first byte of a request.
func noteState(conn net.Conn, state http.ConnState) {
	if c, ok := conn.(*boundedConn); ok {
		since := time.Now()
		if state == http.StateHijacked || state == http.StateClosed {
			since = time.Time{}
		}
		c.listener.note(c, since)
	}
}

type connKey struct{}

// withConn has the context of requests know their connection. It is the ConnContext of an
// [http.Server].
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// withRequest returns a handler that notes that a connection has a request.
func withRequest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*boundedConn); ok {
			c.listener.note(c, time.Time{})
		}
		next.ServeHTTP(w, r)
	})
}

func (l *boundedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// awaitNew waits until each new connection is answered, closed or no longer new, or until ctx
// ends.
func (l *boundedListener) awaitNew(ctx context.Context) {
	for l.hasNew() && ctx.Err() == nil {
		time.Sleep(settlePause)
	}
}

// hasNew reports whether there is an open connection that is new and not answered.
func (l *boundedListener) hasNew() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if !c.isAnswered.Load() && time.Since(c.accepted) < newFor {
			return true
		}
	}
	return false
}

type boundedConn struct {
	net.Conn
	listener   *boundedListener
	accepted   time.Time
	isAnswered atomic.Bool // at least in part
	hasBegun   atomic.Bool // a byte has come
}

// SetReadDeadline implements [net.Conn]. The time for the first head begins with its first
// byte. In net/http it begins with the connection, so a client that connects early would lose
// a request that it sends when this time is over.
func (c *boundedConn) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && !c.hasBegun.Load() {
		t = time.Now().Add(connectionIdle)
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *boundedConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if n > 0 && !c.hasBegun.Swap(true) {
		_ = c.Conn.SetReadDeadline(time.Now().Add(headTimeout)) // if this fails, the next read fails too
	}
	return n, err
}

func (c *boundedConn) Write(data []byte) (int, error) {
	c.isAnswered.Store(true)
	return c.Conn.Write(data)
}

func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	delete(c.listener.open, c)
	select {
	case c.listener.freed <- struct{}{}:
	default:
	}
	return err
}

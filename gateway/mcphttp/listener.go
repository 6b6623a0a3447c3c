package mcphttp

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// newFor is how long an unanswered connection counts as new, because its first request may be
// on its way. net/http uses the same time.
const newFor = 5 * time.Second

// probeTimeout is how long a connection for probes lives.
const probeTimeout = 2 * time.Second

// bounded returns a listener that has at most so many connections open. A further one takes
// the place of the one that has been idle for longest. If none is idle, some more are
// accepted for probes.
func bounded(listener net.Listener, most, probes int) *boundedListener {
	return &boundedListener{
		Listener: listener, most: most, probes: probes, freed: make(chan struct{}, 1), closed: make(chan struct{}),
		unanswered: map[*boundedConn]bool{}, idle: map[*boundedConn]time.Time{},
	}
}

type boundedListener struct {
	net.Listener
	most, probes int
	freed        chan struct{} // gets an element when a connection is closed
	closed       chan struct{}
	once         sync.Once

	mu         sync.Mutex
	open       int
	unanswered map[*boundedConn]bool      // open connections without a response
	idle       map[*boundedConn]time.Time // open connections without a request, and since when
}

func (l *boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &boundedConn{Conn: conn, listener: l, accepted: time.Now(), answered: make(chan struct{})}
	c.answer = sync.OnceFunc(func() {
		close(c.answered)
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.unanswered, c)
	})
	c.release = sync.OnceFunc(func() { l.release(c) })
	for !l.admit(c) {
		select {
		case <-l.freed:
		case <-l.closed:
			conn.Close()
			return nil, net.ErrClosed
		}
	}
	if c.isProbe {
		time.AfterFunc(probeTimeout, func() { c.Close() })
	}
	return c, nil
}

// admit counts a connection, and reports whether there was room for it.
func (l *boundedListener) admit(c *boundedConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.most {
		if idle := l.longestIdle(); idle != nil {
			delete(l.idle, idle)
			go idle.Close()
			return false
		}
		if l.open >= l.most+l.probes {
			return false
		}
		c.isProbe = true
	}
	l.open++
	l.unanswered[c] = true
	return true
}

// longestIdle returns the connection that has been idle for longest, or nil if none has been
// for a second: a request may be on its way.
func (l *boundedListener) longestIdle() (longest *boundedConn) {
	before := time.Now().Add(-time.Second)
	for c, since := range l.idle {
		if since.Before(before) {
			longest, before = c, since
		}
	}
	return longest
}

func (l *boundedListener) release(c *boundedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	delete(l.idle, c)
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// noteState notes which connections are idle. It is the ConnState of an [http.Server].
func noteState(conn net.Conn, state http.ConnState) {
	c, ok := conn.(*boundedConn)
	if !ok {
		return
	}
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if state == http.StateNew || state == http.StateIdle {
		c.listener.idle[c] = time.Now()
	} else {
		delete(c.listener.idle, c)
	}
}

type connKey struct{}

// withConn has the context of requests know their connection. It is the ConnContext of an
// [http.Server].
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// isProbe reports whether a request came on a connection that is for probes alone.
func isProbe(r *http.Request) bool {
	c, ok := r.Context().Value(connKey{}).(*boundedConn)
	return ok && c.isProbe
}

func (l *boundedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// settle waits until each new connection is answered, closed or no longer new, or until ctx
// ends.
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
	listener *boundedListener
	isProbe  bool
	accepted time.Time
	answered chan struct{} // closed by answer
	answer   func()
	release  func()
	hasBegun atomic.Bool // a byte has come
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
	c.answer()
	return c.Conn.Write(data)
}

func (c *boundedConn) Close() error {
	defer c.release()
	c.answer()
	return c.Conn.Close()
}

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

// idleFor is how long a connection without a request keeps its place if others come.
const idleFor = time.Second

// bounded returns a listener that has at most so many connections open. A further one takes
// the place of the one that has had no request for longest, and waits for that if need be.
func bounded(listener net.Listener, most int) *boundedListener {
	return &boundedListener{
		Listener: listener, most: most, freed: make(chan struct{}, 1), closed: make(chan struct{}),
		unanswered: map[*boundedConn]bool{}, idle: map[*boundedConn]time.Time{},
	}
}

type boundedListener struct {
	net.Listener
	most   int
	freed  chan struct{} // gets an element when a connection is closed
	closed chan struct{}
	once   sync.Once

	mu         sync.Mutex
	open       int
	unanswered map[*boundedConn]bool // open connections without a response
	// idle are open connections without a request, and since when. A request counts when its
	// head has come: until then, anyone could have sent its beginning.
	idle map[*boundedConn]time.Time
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
		case <-time.After(idleFor / 10):
		case <-l.closed:
			conn.Close()
			return nil, net.ErrClosed
		}
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
		}
		return false
	}
	l.open++
	l.unanswered[c] = true
	return true
}

// longestIdle returns the connection that has been idle for longest, or nil if all others may have
// a request on its way.
func (l *boundedListener) longestIdle() (longest *boundedConn) {
	before := time.Now().Add(-idleFor)
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

// noteState notes which connections are idle. It is the ConnState of an [http.Server], for which a
// connection is active from the first byte of a request.
func noteState(conn net.Conn, state http.ConnState) {
	c, ok := conn.(*boundedConn)
	if !ok {
		return
	}
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if state == http.StateHijacked || state == http.StateClosed {
		delete(c.listener.idle, c)
	} else {
		c.listener.idle[c] = time.Now()
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
			c.listener.mu.Lock()
			delete(c.listener.idle, c)
			c.listener.mu.Unlock()
		}
		next.ServeHTTP(w, r)
	})
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

package mcphttp

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// timed is a connection that tells until when the last read may last.
type timed struct {
	net.Conn
	until time.Time
}

func (c *timed) SetReadDeadline(t time.Time) error {
	c.until = t
	return nil
}

// A connection waits for its first head as long as an idle one, and for the rest of a
// head no longer than any other.
func TestBoundedConn_TimesTheFirstHeadFromItsFirstByte(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	inner := &timed{Conn: ours}
	conn := &boundedConn{Conn: inner}
	began := time.Now()
	must.Do(t, conn.SetReadDeadline(began.Add(headTimeout)))
	if inner.until.Before(began.Add(connectionIdle)) {
		t.Errorf("a connection without a byte may last until %v after its beginning", inner.until.Sub(began))
	}
	written := make(chan error, 1)
	go func() {
		_, err := theirs.Write([]byte("P"))
		written <- err
	}()
	must.Get(conn.Read(make([]byte, 1)))(t)
	must.Do(t, <-written)
	if latest := time.Now().Add(headTimeout); inner.until.After(latest) || inner.until.IsZero() {
		t.Errorf("the rest of the head may come until %v, want %v at the latest", inner.until, latest)
	}
	// From then on, net/http decides.
	for _, want := range []time.Time{{}, began.Add(time.Hour)} {
		must.Do(t, conn.SetReadDeadline(want))
		if !inner.until.Equal(want) {
			t.Errorf("the deadline is %v, want %v", inner.until, want)
		}
	}
}

// late is a listener whose one connection is accepted while it is closed.
type late struct {
	net.Listener
	asked, closed, ended chan struct{}
	ask, once            sync.Once
}

func (l *late) Accept() (net.Conn, error) {
	l.ask.Do(func() { close(l.asked) })
	<-l.closed
	conn, err := l.Listener.Accept()
	l.Listener.Close()
	return &lateConn{Conn: conn, end: sync.OnceFunc(func() { close(l.ended) })}, err
}

func (l *late) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

type lateConn struct {
	net.Conn
	end func()
}

func (c *lateConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// A connection that is accepted at the last moment is answered before the server ends.
func TestServer_AnswersItsLastConnection(t *testing.T) {
	listener := &late{Listener: must.Get(net.Listen("tcp", "127.0.0.1:0"))(t), asked: make(chan struct{}), closed: make(chan struct{}), ended: make(chan struct{})}
	s := serve(t, listener, &http.Transport{DisableKeepAlives: true}, nil)
	status := make(chan int, 1)
	connected := make(chan struct{})
	traced := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{ConnectDone: func(string, string, error) { close(connected) }})
	go func() {
		response, err := s.transport.RoundTrip(must.Get(http.NewRequestWithContext(traced, http.MethodGet, s.url+"/healthz", nil))(t))
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		response.Body.Close()
		status <- response.StatusCode
	}()
	<-connected
	<-listener.asked // a server that is closed before accepts nothing
	s.Close(patience.Long)
	select {
	case <-listener.ended:
	default:
		t.Error("the server has ended, and a connection that it accepted is open")
	}
	if got := <-status; got != http.StatusOK {
		t.Errorf("status %d, want %d", got, http.StatusOK)
	}
}

// When all connections are taken, a further one takes the place of the one that has had no request
// for longest, even if the head of one has begun.
func TestBoundedListener_MakesRoom(t *testing.T) {
	inner := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := bounded(inner, 3)
	defer l.Close()
	accept := func() *boundedConn {
		client := must.Get(net.Dial("tcp", inner.Addr().String()))(t)
		t.Cleanup(func() { client.Close() })
		conn := must.Get(l.Accept())(t).(*boundedConn)
		t.Cleanup(func() { conn.Close() })
		noteState(conn, http.StateNew)
		return conn
	}
	idle, begun, busy := accept(), accept(), accept()
	noteState(begun, http.StateActive)
	noteState(busy, http.StateActive)
	request := httptest.NewRequestWithContext(withConn(t.Context(), busy), http.MethodGet, "/", nil)
	withRequest(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), request)
	l.mu.Lock()
	l.open[idle], l.open[begun] = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	l.mu.Unlock()
	for _, next := range []*boundedConn{idle, begun} {
		accept()
		if _, err := next.Conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the longest idle connection has the error %v", err)
		}
	}
	if len(l.open) != 3 || !l.open[busy].IsZero() {
		t.Errorf("%d connections are open, and the one with a request has none since %v", len(l.open), l.open[busy])
	}
	must.Do(t, busy.Conn.SetReadDeadline(time.Now().Add(-time.Hour)))
	if _, err := busy.Conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection with a request has the error %v", err)
	}
}

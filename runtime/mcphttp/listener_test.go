package mcphttp

import (
	"net"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
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
	conn := &boundedConn{Conn: inner, release: func() {}}
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

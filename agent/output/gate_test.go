package output

import (
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// A gate tells of bytes once, however many writes there are, until it is armed again.
func TestGate_TellsOnce(t *testing.T) {
	s, w := open(t, MinLimit)
	tells := func() (told bool) {
		must.Do(t, s.gate.conn.Control(func(fd uintptr) {
			n, _ := unix.EpollWait(int(fd), s.gate.ready[:], 0)
			told = n > 0
		}))
		return told
	}
	put := func() { must.Get(io.WriteString(w, "line\n"))(t) }
	if tells() {
		t.Error("it tells of an empty pipe")
	}
	put()
	must.Do(t, s.gate.wait())
	put()
	if tells() {
		t.Error("it tells of a second write")
	}
	must.Do(t, s.gate.arm())
	if !tells() {
		t.Error("it does not tell of bytes that were there when it was armed")
	}
	s.Drain()
	must.Do(t, s.gate.arm())
	waited := make(chan error, 1)
	go func() { waited <- s.gate.wait() }()
	put()
	select {
	case err := <-waited:
		must.Do(t, err)
	case <-time.After(patience.Long):
		t.Fatal("it does not tell of a write that it waited for")
	}
}

// A closed stream ends its reader, whatever that is doing.
func TestRead_EndsWithTheStream(t *testing.T) {
	for _, text := range []string{"", "line\n"} {
		s, w := open(t, MinLimit)
		done := make(chan struct{})
		go func() { defer close(done); s.Read() }()
		must.Get(io.WriteString(w, text))(t)
		s.Close()
		select {
		case <-done:
		case <-time.After(patience.Long):
			t.Fatalf("it reads on after %q", text)
		}
	}
}

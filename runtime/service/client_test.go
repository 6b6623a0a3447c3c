package service

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// A client has gone when it sends no more and its end of the answers is closed, whether that is a pipe
// or a socket. One that only sends no more waits for answers.
func TestWatch_SeesThatTheClientHasGone(t *testing.T) {
	for name, pair := range map[string]func() (theirs, ours *os.File){
		"pipe": func() (theirs, ours *os.File) {
			theirs, ours, err := os.Pipe()
			must.Do(t, err)
			return theirs, ours
		},
		"socket": func() (theirs, ours *os.File) {
			fds := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
			must.Do(t, unix.Shutdown(fds[0], unix.SHUT_WR))
			return os.NewFile(uintptr(fds[0]), "theirs"), os.NewFile(uintptr(fds[1]), "ours")
		},
	} {
		t.Run(name, func(t *testing.T) {
			theirs, out := pair()
			defer out.Close()
			in, gone := watch(strings.NewReader("a message\n"), out)
			if text := must.Get(io.ReadAll(in))(t); string(text) != "a message\n" {
				t.Errorf("read %q", text)
			}
			select {
			case <-gone:
				t.Error("a client that reads has gone")
			case <-time.After(2 * clientEvery):
			}
			must.Do(t, theirs.Close())
			select {
			case <-gone:
			case <-time.After(patience.For(patience.Long)):
				t.Error("the end of the client is not seen")
			}
		})
	}
}

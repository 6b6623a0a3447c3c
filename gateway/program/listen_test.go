package program

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// A socket that nobody listens at is replaced, and no other file.
func TestListenUnix_ReplacesOnlySockets(t *testing.T) {
	folder := t.TempDir()
	thesis := filepath.Join(folder, "thesis.txt")
	must.Do(t, os.WriteFile(thesis, []byte("words"), 0o600))
	link := filepath.Join(folder, "link")
	must.Do(t, os.Symlink(thesis, link))
	for _, path := range []string{thesis, link} {
		if listener, err := listenUnix(path); err == nil {
			listener.Close()
			t.Errorf("%s has become a socket", path)
		}
	}
	if got := string(must.Get(os.ReadFile(thesis))(t)); got != "words" {
		t.Errorf("the file has %q", got)
	}
	path := filepath.Join(folder, "socket")
	old := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: path}))(t)
	if listener, err := listenUnix(path); err == nil {
		listener.Close()
		t.Error("a socket in use was replaced")
	}
	old.SetUnlinkOnClose(false)
	must.Do(t, old.Close())
	must.Do(t, must.Get(listenUnix(path))(t).Close())
}

// A socket has its mode from the moment at which it has its name.
func TestListenUnix_ModeComesFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("s", 20))
	end := make(chan struct{})
	seen := make(chan fs.FileMode, 1)
	var looked sync.WaitGroup
	looked.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			if info, err := os.Lstat(path); err == nil && info.Mode().Perm() != 0o660 {
				select {
				case seen <- info.Mode():
				default:
				}
			}
		}
	})
	for range 200 {
		listener := must.Get(listenUnix(path))(t)
		conn := must.Get(net.Dial("unix", path))(t)
		conn.Close()
		must.Do(t, listener.Close())
		if _, err := os.Lstat(path); err == nil {
			t.Fatal("the socket is left")
		}
	}
	close(end)
	looked.Wait()
	select {
	case mode := <-seen:
		t.Errorf("the socket had the mode %v", mode)
	default:
	}
	if left := must.Get(os.ReadDir(filepath.Dir(path)))(t); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

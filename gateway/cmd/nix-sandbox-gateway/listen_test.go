package main

import (
	"net"
	"os"
	"path/filepath"
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

package program

import (
	"net"
	"path/filepath"
	"strconv"
	"testing"

	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestNotify_ReachesTheManager(t *testing.T) {
	for name, address := range map[string]string{
		"a path":              filepath.Join(t.TempDir(), "notify"),
		"an abstract address": "@nix-sandbox-mcp-" + strconv.Itoa(os.Getpid()),
	} {
		t.Run(name, func(t *testing.T) {
			at := address
			if at[0] == '@' {
				at = "\x00" + at[1:]
			}
			manager := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"}))(t)
			defer manager.Close()
			t.Setenv("NOTIFY_SOCKET", address)
			notify("READY=1")
			text := make([]byte, 64)
			if n := must.Get(manager.Read(text))(t); string(text[:n]) != "READY=1" {
				t.Errorf("the manager read %q", text[:n])
			}
		})
	}
}

func TestListenSystemd_SaysWhatIsMissing(t *testing.T) {
	own := strconv.Itoa(os.Getpid())
	for name, test := range map[string]struct{ pid, count, want string }{
		"no variables":      {"", "", "systemd passed this process no socket"},
		"another process's": {"1", "1", "systemd passed this process no socket"},
		"two sockets":       {own, "2", `systemd passed "2" sockets`},
		"no number":         {own, "x", `systemd passed "x" sockets`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("LISTEN_PID", test.pid)
			t.Setenv("LISTEN_FDS", test.count)
			if _, err := listenSystemd(false); err == nil || err.Error() != test.want {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if os.Getenv("LISTEN_PID") != "" {
				t.Error("the variables are there for what this process starts")
			}
		})
	}
}

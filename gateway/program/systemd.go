package program

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// systemdAddress is the address of the socket that systemd opened for this service.
const systemdAddress = "systemd"

// firstPassed is the descriptor of the first socket that systemd passes
// (sd_listen_fds(3)).
const firstPassed = 3

// listenSystemd returns the socket of systemd as a listener. It takes exactly one, because
// different machines could reach two of them.
func listenSystemd(knowsCallers bool) (net.Listener, error) {
	// The variables are not for processes that this one starts.
	pid, count := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name)
	}
	if !command.IsOwnPID(pid) {
		return nil, &config.Error{
			Problem: "systemd passed this process no socket",
			Hint:    "start it by a unit that has a socket unit, as nix-sandbox-mcp.service in deploy/ has, or give --http an address",
		}
	}
	if count != "1" {
		return nil, &config.Error{
			Problem: fmt.Sprintf("systemd passed %q sockets", count),
			Hint:    "give the socket unit one line ListenStream",
		}
	}
	file := os.NewFile(firstPassed, systemdAddress)
	defer file.Close()
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, &config.Error{
			Problem: fmt.Sprintf("the socket of systemd cannot be used: %v", err),
			Hint:    "let the socket unit have one line ListenStream, and Accept=no",
		}
	}
	if address, isTCP := listener.Addr().(*net.TCPAddr); isTCP && !knowsCallers && !address.IP.IsLoopback() {
		listener.Close()
		return nil, reachable(address.String())
	}
	return listener, nil
}

// notify tells the manager of this service its state (sd_notify(3)), if there is a manager. It
// ignores errors: the manager has a time limit of its own.
func notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if rest, abstract := strings.CutPrefix(path, "@"); abstract {
		path = "\x00" + rest
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}

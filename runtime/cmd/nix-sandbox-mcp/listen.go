package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

const (
	// lameDuck is how long a server that is about to end goes on as before, so that
	// proxies learn of it by /readyz, and drainTimeout how long calls may then take.
	lameDuck     = 4 * time.Second
	drainTimeout = 30 * time.Second
)

// listen returns a listener at an address, or at the path of a socket after "unix:".
func listen(address string) (net.Listener, error) {
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix {
		return listenUnix(path)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &config.Error{
			Problem: fmt.Sprintf("the address is %q, which is not ADDRESS:PORT", address),
			Hint:    "write an address such as 127.0.0.1:8080, or unix:/run/nix-sandbox-mcp/socket",
		}
	}
	if !isLocal(host) {
		return nil, &config.Error{
			Problem: fmt.Sprintf("%s can be reached from other machines, and there is no way to tell who calls", address),
			Hint:    "listen at an address of this machine alone, such as 127.0.0.1:8080",
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, cannotListen(address, err)
	}
	return listener, nil
}

// isLocal reports whether only this machine reaches an address.
func isLocal(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// listenUnix returns a listener at a path. A socket that nobody listens at any more is
// replaced.
func listenUnix(path string) (net.Listener, error) {
	listener, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		conn, dialError := net.Dial("unix", path)
		if dialError == nil {
			conn.Close()
		} else if errors.Is(dialError, syscall.ECONNREFUSED) && os.Remove(path) == nil {
			listener, err = net.Listen("unix", path)
		}
	}
	if err != nil {
		return nil, cannotListen("unix:"+path, err)
	}
	return listener, nil
}

// cannotListen is the error of an address that is not to be had.
func cannotListen(address string, err error) error {
	var call *os.SyscallError
	if errors.As(err, &call) {
		err = call.Err
	}
	return &config.Error{Problem: fmt.Sprintf("listen at %s: %v", address, err), Hint: "end what listens there, or choose another address"}
}

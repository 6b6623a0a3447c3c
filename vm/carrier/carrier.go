// Package carrier carries the connections of a sandbox in a virtual machine to the network of named hosts outside.
//
// In the machine, the first process has the listening sockets of the sandbox's network namespace. Outside, a program in
// a network namespace of the same kind makes each connection once more, at the address that the sandbox meant: the
// proxy has the sockets there. Between them, connections are streams over one port of the machine.
//
// Outside, every byte is hostile: an address can only lead to the proxy, because it has all sockets of the namespace,
// and streams are bounded in number and in bytes.
package carrier

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// maxStreams bounds the connections at a time. The proxy has a bound of its own.
	maxStreams = 256
	// maxWaiting bounds the connections that wait to be accepted outside. Each stream has a window of 256 KiB.
	maxWaiting = 64
	// maxQuery bounds a look-up and its answer, in bytes, and queryTimeout its time.
	maxQuery     = 4 << 10
	queryTimeout = 10 * time.Second
)

// Each side begins with the greeting and a number of the inside. A machine that goes on from a saved state
// has pieces of an earlier conversation in its port, which end there.
var greeting = []byte("nix-sandbox-mcp carrier 1\n")

const numberBytes = 16

// After that, the outside sends the certificates that the sandbox trusts: their length in four bytes, and at most
// maxCertificates bytes. Without any, programs find their own.
const maxCertificates = 8 << 20

func settings() *yamux.Config {
	s := yamux.DefaultConfig()
	s.EnableKeepAlive = false // a machine may stand still
	s.AcceptBacklog = maxWaiting
	s.ConnectionWriteTimeout = time.Minute
	s.LogOutput = io.Discard
	return s
}

// join carries both directions of a connection until both have ended.
func join(one *net.TCPConn, stream *yamux.Stream) {
	defer one.Close()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(stream, one)
		stream.Close() // this direction
	})
	both.Go(func() {
		_, err := io.Copy(one, stream)
		if err != nil {
			_ = one.SetLinger(0)
			one.Close()
			return
		}
		_ = one.CloseWrite()
	})
	both.Wait()
}

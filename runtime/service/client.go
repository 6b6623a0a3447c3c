package service

import (
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
)

// clientEvery is how often a server looks for a client that sends no more.
const clientEvery = time.Second

// client is the stream of a client's messages.
type client struct {
	io.Reader
	once sync.Once
	sent chan struct{} // closed at the end of the stream
}

// watch returns the stream of a client's messages, and a channel that is closed when the client has
// gone: it sends no more, and nobody reads its answers. One that only sends no more waits for answers.
func watch(in io.Reader, out io.Writer) (*client, <-chan struct{}) {
	c, gone := &client{Reader: in, sent: make(chan struct{})}, make(chan struct{})
	if file, is := out.(*os.File); is {
		go c.follow(file, gone)
	}
	return c, gone
}

func (c *client) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil {
		c.once.Do(func() { close(c.sent) })
	}
	return n, err
}

func (c *client) follow(out *os.File, gone chan<- struct{}) {
	defer guard.Recover(nil)
	<-c.sent
	for {
		// The other end is closed: POLLERR of a pipe, POLLHUP of the sockets that Node.js gives its
		// children (poll(2)). One that only sends no more is neither.
		fds := []unix.PollFd{{Fd: int32(out.Fd())}}
		if _, err := unix.Poll(fds, 0); err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0 {
			close(gone)
			return
		}
		time.Sleep(clientEvery)
	}
}

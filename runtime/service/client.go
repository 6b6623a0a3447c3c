package service

import (
	"fmt"
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
	c, gone := &client{Reader: polled(in, out), sent: make(chan struct{})}, make(chan struct{})
	if file, is := out.(*os.File); is {
		go c.follow(file, gone)
	}
	return c, gone
}

// polled returns a stream that Go's poller waits for. A read that blocks keeps one of Go's processors until
// Go's monitor takes it back, which costs a fifth of a short call.
func polled(in io.Reader, out io.Writer) io.Reader {
	file, is := in.(*os.File)
	if !is {
		return in
	}
	fd := int(file.Fd())
	var input, output unix.Stat_t
	if unix.Fstat(fd, &input) != nil {
		return in
	}
	switch input.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		// Opened anew, the flag is of this end alone: several programs may have got the other one.
		if again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
			return again
		}
	case unix.S_IFSOCK: // which Node.js gives its children, one for each stream
		file, is := out.(*os.File)
		if is && unix.Fstat(int(file.Fd()), &output) == nil && output.Ino != input.Ino && unix.SetNonblock(fd, true) == nil {
			return os.NewFile(uintptr(fd), "stdin")
		}
	}
	return in
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

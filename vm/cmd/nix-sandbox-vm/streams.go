package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
)

// streams carries the standard streams of the program in a machine.
type streams struct {
	machine *machine.Machine
	output  *copier // of the standard output
	log     *copier // of the standard error
}

// newStreams carries the streams of a machine; taken is how much of its output and log
// was read before.
func newStreams(m *machine.Machine, taken [2]int64) *streams {
	return &streams{
		machine: m,
		output:  newCopier(os.Stdout, m.Output, taken[0]),
		log:     newCopier(os.Stderr, m.Log, taken[1]),
	}
}

// written is how much of the output has come, in bytes.
func (s *streams) written() int64 {
	s.output.mu.Lock()
	defer s.output.mu.Unlock()
	return s.output.read
}

// sent returns how many bytes the machine has sent of each stream, also those that
// nobody has read yet. The machine stands still.
func (s *streams) sent() (output, log int64, err error) {
	if output, err = s.output.sent(); err != nil {
		return 0, 0, err
	}
	log, err = s.log.sent()
	return output, log, err
}

// carry carries the streams until the program in the machine has ended, and returns its
// exit status, or until saved is closed. With quiet, the machine stands still until its
// first call.
func (s *streams) carry(quiet *pauser, saved <-chan struct{}) (status int, err error) {
	go func() {
		if quiet != nil {
			_ = quiet.carry(s.machine.Input, os.Stdin)
		} else {
			_, _ = io.Copy(s.machine.Input, os.Stdin)
		}
		_ = s.machine.Input.CloseWrite() // the machine may have ended
	}()
	var copies sync.WaitGroup
	copies.Go(s.output.copy)
	copies.Go(s.log.copy)
	var (
		exited protocol.Exited
		failed chan error
	)
	if quiet != nil {
		failed = quiet.failed
	}
	select {
	case err := <-failed:
		return 0, err
	case <-saved:
		return 0, nil
	case exited = <-s.machine.Exited:
	case <-s.machine.Ended:
		// The last lines of the machine's own may be there.
		select {
		case exited = <-s.machine.Exited:
		default:
			return 0, s.machine.Failure()
		}
	}
	s.output.finish(exited.Output)
	s.log.finish(exited.Log)
	copies.Wait()
	if missing := exited.Output - s.output.read + exited.Log - s.log.read; missing != 0 {
		return 0, fmt.Errorf("of what the program in the virtual machine wrote, %d bytes are missing", missing)
	}
	return exited.Status & 0xff, nil
}

// copier copies a stream of a machine.
type copier struct {
	to   *os.File
	from *net.UnixConn

	mu    sync.Mutex // of a read and its count
	read  int64      // bytes, of all that the program has written
	limit int64      // of read; -1 while it is not known
}

func newCopier(to *os.File, from *net.UnixConn, taken int64) *copier {
	return &copier{to: to, from: from, read: taken, limit: -1}
}

// finish says how much there is in all. Copy returns when it has copied that.
func (c *copier) finish(limit int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = limit
	if c.read >= limit {
		_ = c.from.CloseRead() // ends the copy, which waits
	}
}

// sent returns how many bytes the other end has sent.
func (c *copier) sent() (bytes int64, err error) {
	raw, err := c.from.SyscallConn()
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := 0
	controlErr := raw.Control(func(fd uintptr) { waiting, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if controlErr != nil {
		err = controlErr
	}
	return c.read + int64(waiting), err
}

// copy copies until the stream ends, or until as much has been copied as there is.
func (c *copier) copy() {
	raw, err := c.from.SyscallConn()
	if err != nil {
		return
	}
	buffer := make([]byte, 64<<10)
	for {
		n, done := 0, false
		waitErr := raw.Read(func(fd uintptr) bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			for {
				n, err = unix.Read(int(fd), buffer)
				if err != unix.EINTR {
					break
				}
			}
			if err == unix.EAGAIN {
				return false
			}
			if err == nil {
				c.read += int64(n)
			}
			done = err != nil || n == 0 || c.limit >= 0 && c.read >= c.limit
			return true
		})
		if waitErr != nil {
			return
		}
		if _, err := c.to.Write(buffer[:max(n, 0)]); err != nil || done {
			return
		}
	}
}

package output

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pause is how long output gathers in a pipe after a read that got little, before the next one.
const pause = time.Millisecond

// A gate tells of bytes in a pipe once each time that it is armed. Go's own poller has epoll(7) tell of
// each write, wanted or not: a program that prints line by line then wakes its reader for each line,
// which costs both more than the line.
type gate struct {
	pipe  int
	file  *os.File // of an epoll instance with the pipe in it, which Go's poller watches
	conn  syscall.RawConn
	ready [1]unix.EpollEvent
}

func newGate(pipe int) (*gate, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	_ = unix.SetNonblock(fd, true) // so that NewFile gives it to the poller
	g := &gate{pipe: pipe, file: os.NewFile(uintptr(fd), "gate")}
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, pipe, once(pipe)); err != nil {
		g.file.Close()
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	if g.conn, err = g.file.SyscallConn(); err != nil {
		g.file.Close()
		return nil, err
	}
	return g, nil
}

func once(pipe int) *unix.EpollEvent {
	return &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(pipe)}
}

// arm has the gate tell of bytes again.
func (g *gate) arm() error {
	var err error
	if closed := g.conn.Control(func(fd uintptr) {
		err = unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, g.pipe, once(g.pipe))
	}); closed != nil {
		return closed
	}
	return err
}

// wait waits until the pipe has bytes or has ended. Its error is that of a closed gate.
func (g *gate) wait() error {
	return g.conn.Read(func(fd uintptr) bool {
		// It does not wait, so that Go's scheduler need not know of it, as in package pipe.
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(&g.ready)), uintptr(len(g.ready)), 0, 0, 0)
		return errno == 0 && n > 0
	})
}

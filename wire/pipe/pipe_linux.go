// Package pipe reads and writes pipes and sockets that do not block, by system calls that Go's
// scheduler does not see.
//
// When a whole Go program waits, the first system call that the scheduler knows of wakes its monitor
// thread (sysmon), which from then on looks every 20 µs whether the call hangs. In programs that work
// for a moment at a time, as server and agent do for a small call, that is a third of the processor
// time. A call on a descriptor that does not block cannot hang, and needs no watch.
package pipe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// long is how many bytes at once are much, in bytes.
const long = 32 << 10

// stream is a file that Go's poller watches.
type stream struct {
	file *os.File
	raw  syscall.RawConn
}

// New returns a stream with the bytes of file. Deadlines of file hold for the stream too, and the
// end of one is the other's. If file blocks, as regular files and terminals do, the stream is file itself.
func New(file *os.File) io.ReadWriteCloser {
	raw, err := file.SyscallConn()
	if err != nil || !isPolled(file) {
		return file
	}
	return &stream{file, raw}
}

// isPolled reports whether Go's poller watches a file.
func isPolled(file *os.File) bool { return file.SetDeadline(time.Time{}) == nil }

// Reader is [New] for a standard input. A reader that is no file is returned as it is.
func Reader(r io.Reader) io.Reader {
	if file, ok := r.(*os.File); ok {
		return New(unblocked(file, os.O_RDONLY))
	}
	return r
}

// Writer is [New] for a standard output. A writer that is no file is returned as it is.
func Writer(w io.Writer) io.Writer {
	if file, ok := w.(*os.File); ok {
		return New(unblocked(file, os.O_WRONLY))
	}
	return w
}

// kept has the files of sockets of standard streams: a finalizer would close the descriptors.
var kept sync.Map

// unblocked returns a file with the bytes of file that does not block, or file itself. The flag O_NONBLOCK
// belongs to every program that has the same open file: a pipe is therefore opened once more. A socket
// cannot be, and is taken to be this program's own.
func unblocked(file *os.File, flag int) *os.File {
	info, err := file.Stat()
	if err != nil || isPolled(file) {
		return file
	}
	fd := file.Fd()
	switch info.Mode().Type() {
	case os.ModeNamedPipe:
		if again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), flag|unix.O_NONBLOCK, 0); err == nil {
			return again
		}
	case os.ModeSocket:
		if unix.SetNonblock(int(fd), true) == nil {
			again := os.NewFile(fd, file.Name())
			kept.Store(fd, again)
			return again
		}
	}
	return file
}

func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := s.transfer("read", unix.SYS_READ, s.raw.Read, p)
	if err == nil && n == 0 {
		return 0, io.EOF
	}
	if n >= long {
		// To decode that much takes a while, in which the monitor thread is needed: it has other goroutines
		// run in between. This is an ordinary system call, which wakes it.
		_, _, _ = unix.Syscall(unix.SYS_GETPID, 0, 0, 0)
	}
	return n, err
}

func (s *stream) Close() error { return s.file.Close() }

func (s *stream) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := s.transfer("write", unix.SYS_WRITE, s.raw.Write, p[done:])
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// transfer makes one system call as soon as the file is ready for it. p is not empty.
func (s *stream) transfer(name string, call uintptr, ready func(func(uintptr) bool) error, p []byte) (n int, err error) {
	var errno syscall.Errno
	err = ready(func(fd uintptr) bool {
		n, errno = once(call, fd, p)
		return errno != unix.EAGAIN
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
	case err != nil:
		err = os.ErrClosed
	case errno != 0:
		err = errno
	default:
		return n, nil
	}
	return 0, &os.PathError{Op: name, Path: s.file.Name(), Err: err}
}

// Read is read(2) of a descriptor that does not block. n is -1 if there is an error.
func Read(fd int, p []byte) (n int, err error) {
	n, errno := once(unix.SYS_READ, uintptr(fd), p)
	if errno != 0 {
		return -1, errno
	}
	return n, nil
}

// once makes a system call again until no signal interrupts it.
func once(call, fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := unix.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

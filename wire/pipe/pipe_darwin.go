package pipe

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// New returns file: on macOS every system call goes through a library, and the scheduler sees it.
func New(file *os.File) io.ReadWriteCloser { return file }

// Reader returns r.
func Reader(r io.Reader) io.Reader { return r }

// Writer returns w.
func Writer(w io.Writer) io.Writer { return w }

// Read is read(2) of a descriptor that does not block. n is -1 if there is an error.
func Read(fd int, p []byte) (n int, err error) {
	for {
		if n, err = unix.Read(fd, p); err != unix.EINTR {
			return n, err
		}
	}
}

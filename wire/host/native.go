//go:build linux && !posix

package host

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// EndWithParent has the kernel kill a program when the thread that started it ends (PR_SET_PDEATHSIG in prctl(2)).
func EndWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// OpenBeneath opens a path beneath a folder, for reading or as [OpenPath], and leaves the folder by no link, no
// "..", and no mount. It never waits: a FIFO is opened at once.
func OpenBeneath(folder int, name string, flags int) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | openFlags(flags)),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	// EAGAIN: something was renamed while the kernel resolved the path (openat2(2)).
	for range 8 {
		fd, err := unix.Openat2(folder, name, &how)
		if err == nil {
			return fd, nil
		}
		if err != unix.EAGAIN && err != unix.EINTR {
			return -1, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
	return -1, &fs.PathError{Op: "open", Path: name, Err: unix.EAGAIN}
}

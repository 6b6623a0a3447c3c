//go:build darwin || posix

package host

import (
	"io/fs"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// EndWithParent leaves the attributes as they are: a program ends when its standard input does.
func EndWithParent(*syscall.SysProcAttr) {}

// OpenBeneath opens a path beneath a folder, for reading or as [OpenPath], and leaves the folder by no link, no
// "..", and no mount. It never waits: a FIFO is opened at once.
func OpenBeneath(folder int, name string, flags int) (int, error) {
	fd, err := openBeneath(folder, name, flags|openFlags(flags))
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, nil
}

func openBeneath(folder int, name string, flags int) (int, error) {
	if path.IsAbs(name) {
		return -1, unix.EXDEV
	}
	var root unix.Stat_t
	if err := unix.Fstat(folder, &root); err != nil {
		return -1, err
	}
	names := strings.Split(path.Clean(name), "/")
	at := folder
	for i, name := range names {
		open := flags
		if i < len(names)-1 {
			open = OpenPath | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		}
		var st unix.Stat_t
		next, err := -1, error(unix.EXDEV)
		if name != ".." {
			next, err = unix.Openat(at, name, open, 0)
		}
		if at != folder {
			unix.Close(at)
		}
		if err == nil {
			err = unix.Fstat(next, &st)
		}
		if err == nil && st.Dev != root.Dev {
			err = unix.EXDEV
		}
		if err != nil {
			if next >= 0 {
				unix.Close(next)
			}
			return -1, err
		}
		at = next
	}
	return at, nil
}

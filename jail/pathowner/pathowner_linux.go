// Package pathowner finds out who decides where a path leads: every user who can
// replace an entry of a folder on the way.
package pathowner

import (
	"math"
	"strings"

	"golang.org/x/sys/unix"
)

// Anybody stands for users who are not known by number, because a group or all
// users may write to a folder on the way. No user has this number.
const Anybody = math.MaxUint32

// maxLinks is how many symbolic links a path may lead through, as in the kernel.
const maxLinks = 40

// Open opens a path and returns the users, other than root, who can make it lead
// elsewhere. The owner of the target is among them only if they also own something on
// the way. The caller closes the descriptor, which is for the path alone (O_PATH).
func Open(path string) (fd int, deciders map[uint32]bool, err error) {
	open := func(at int, name string) (int, unix.Stat_t, error) {
		var stat unix.Stat_t
		fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			if err = unix.Fstat(fd, &stat); err != nil {
				unix.Close(fd)
			}
		}
		return fd, stat, err
	}
	folder, stat, err := open(unix.AT_FDCWD, "/")
	if err != nil {
		return 0, nil, err
	}
	deciders = map[uint32]bool{}
	links := 0
	for parts := strings.Split(path, "/"); len(parts) > 0; {
		name := parts[0]
		parts = parts[1:]
		if name == "" || name == "." {
			continue
		}
		next, entry, err := open(folder, name)
		if err != nil {
			unix.Close(folder)
			return 0, nil, err
		}
		deciders[stat.Uid] = true
		switch {
		case !writableByOthers(stat):
		case stat.Mode&unix.S_ISVTX == 0:
			deciders[Anybody] = true
		default: // as in /tmp, where users replace only their own entries
			deciders[entry.Uid] = true
		}
		if entry.Mode&unix.S_IFMT != unix.S_IFLNK {
			unix.Close(folder)
			folder, stat = next, entry
			continue
		}
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(next, "", target)
		unix.Close(next)
		if links++; err == nil && links > maxLinks {
			err = unix.ELOOP
		}
		if err == nil && n > 0 && target[0] == '/' {
			unix.Close(folder)
			folder, stat, err = open(unix.AT_FDCWD, "/")
		}
		if err != nil {
			unix.Close(folder)
			return 0, nil, err
		}
		parts = append(strings.Split(string(target[:n]), "/"), parts...)
	}
	delete(deciders, 0)
	return folder, deciders, nil
}

// writableByOthers reports whether anyone but root and the owner may write to a file.
// It does not count root's group, nor the owner's private group, which has the
// owner's number.
func writableByOthers(stat unix.Stat_t) bool {
	private := stat.Gid == 0 || stat.Gid == stat.Uid
	return stat.Mode&0o002 != 0 || stat.Mode&0o020 != 0 && !private
}

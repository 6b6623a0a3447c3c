// Package host covers the differences between Linux and macOS, for the programs outside of sandboxes.
//
// With the build tag posix, programs for Linux use only system calls of both, so that tests here run most of the
// code that a Mac runs.
package host

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Pair makes a pair of Unix sockets of a type, such as unix.SOCK_STREAM, that no program inherits by accident.
// The caller owns both. macOS has no SOCK_SEQPACKET.
func Pair(kind int) (ends [2]int, err error) {
	if ends, err = pair(kind); err != nil {
		err = fmt.Errorf("make a pair of sockets: %w", err)
	}
	return ends, err
}

// Unnamed returns a file without a name, in a folder, which disappears with the process. The caller closes it.
func Unnamed(folder string) (*os.File, error) {
	if file, err := unnamed(folder); file != nil || err != nil {
		return file, err
	}
	file, err := os.CreateTemp(folder, "nix-sandbox-mcp-")
	if err != nil {
		return nil, fmt.Errorf("make a file in %s: %w", folder, err)
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, fmt.Errorf("remove the name of a file: %w", err)
	}
	return file, nil
}

// Duplicate returns another descriptor of an open file, which the caller closes.
func Duplicate(file *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}

// openFlags are further flags for a path that hostile code may have made.
func openFlags(flags int) int {
	if flags&unix.O_DIRECTORY != 0 || OpenPath != 0 && flags&OpenPath != 0 {
		return unix.O_NOFOLLOW | unix.O_CLOEXEC
	}
	// Without O_NONBLOCK, opening a FIFO or a file with a lease would wait.
	return unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY
}

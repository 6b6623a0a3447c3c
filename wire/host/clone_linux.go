//go:build posix

package host

import (
	"os"

	"golang.org/x/sys/unix"
)

// Clone returns an unnamed copy of a file in a folder of the same file system that shares its blocks, or nil if the
// file system has no such copies. The caller closes it.
func Clone(from *os.File, folder string) (*os.File, error) {
	file, err := Unnamed(folder)
	if err != nil {
		return nil, err
	}
	if unix.IoctlFileClone(int(file.Fd()), int(from.Fd())) != nil {
		file.Close()
		return nil, nil
	}
	return file, nil
}

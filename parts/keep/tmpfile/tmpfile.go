// Package tmpfile makes temporary files that disappear with the process, even if it is
// killed.
package tmpfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File returns a file without a name, in a folder. The caller closes it.
func File(folder string) (*os.File, error) {
	fd, err := unix.Open(folder, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "unnamed"), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return nil, fmt.Errorf("make a file in %s: %w", folder, err)
	}
	// A file system without O_TMPFILE; see open(2).
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

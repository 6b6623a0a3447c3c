package config

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// minFiles is how many descriptors a sandbox and the programs that start it may have at least: the
// agent's own begin at 250.
const minFiles = 512

// TooFewFiles says that sandboxes could not start because of the limit on open files; nil if they can.
func TooFewFiles() *Error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Max >= minFiles {
		return nil // Go has raised the soft limit
	}
	return &Error{
		Problem: fmt.Sprintf("this process may have %d files open, and a sandbox needs %d", limit.Max, minFiles),
		Hint:    fmt.Sprintf("start it with a higher limit: ulimit -n %d, or LimitNOFILE=%[1]d of systemd", 8*minFiles),
	}
}

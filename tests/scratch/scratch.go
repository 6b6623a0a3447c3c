// Package scratch gives tests temporary folders in memory.
package scratch

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// memory is the folder in which POSIX's shared memory lies, on every Linux.
const memory = "/dev/shm"

// enough is how many bytes it has at least. Containers often have 64 MiB.
const enough = 1 << 30

// Main runs the tests of a package that awaits the disk with every file that it writes
// (fsync), which takes a busy disk a hundred times longer than everything else in these
// tests. Their temporary folders are in memory, where this machine has as much. It
// returns the exit status.
func Main(m *testing.M) int {
	var fs unix.Statfs_t
	if unix.Statfs(memory, &fs) == nil && uint64(fs.Bsize)*fs.Bavail >= enough && unix.Access(memory, unix.W_OK) == nil {
		if err := os.Setenv("TMPDIR", memory); err != nil {
			panic(err)
		}
	}
	return m.Run()
}

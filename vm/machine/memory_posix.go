//go:build darwin || posix

package machine

import (
	"fmt"
	"net"
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/snapshot"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// ownMemory returns the file that a machine maps for itself, and the caller closes it. It is a copy, to which the
// machine writes: no system call tells which pages of a private mapping are copies.
func ownMemory(from *os.File) (*os.File, error) {
	own, err := host.Clone(from, os.TempDir())
	if err != nil {
		return nil, fmt.Errorf("copy a virtual machine's memory: %w", err)
	}
	if own == nil {
		if own, err = newMemory(); err == nil {
			if err = copySparse(own, from); err != nil {
				own.Close()
			}
		}
	}
	if err == nil {
		err = own.Chmod(0o666)
	}
	return own, err
}

// privately says that the machine's writes do not reach the file of [ownMemory].
const privately = false

// copyMemory writes the memory of a machine, which stands still, to a file.
func (m *Machine) copyMemory(to *os.File) (rest func() error, err error) {
	return func() error { return nil }, copySparse(to, m.memory)
}

// copySparse copies a file but for its holes.
func copySparse(to, from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if err := to.Truncate(info.Size()); err != nil {
		return err
	}
	return snapshot.EachPart(from, func(part []byte, at int64) error { return writeSparse(to, part, at) })
}

// emptyMemory makes a file for the memory of a machine that begins with none. It is unlinked and sparse.
func emptyMemory(size int64) (*os.File, error) {
	file, err := newMemory()
	if err == nil {
		if err = file.Truncate(size); err != nil {
			file.Close()
		}
	}
	return file, err
}

func newMemory() (*os.File, error) {
	file, err := host.Unnamed(os.TempDir())
	if err != nil {
		return nil, fmt.Errorf("make a file for the virtual machine's memory: %w", err)
	}
	return file, nil
}

func identify(*net.UnixConn) error { return nil }

// Read reads from the connection.
func (q *monitor) Read(p []byte) (int, error) { return q.connection.Read(p) }

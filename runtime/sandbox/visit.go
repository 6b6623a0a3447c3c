package sandbox

import (
	"context"
	"io"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Visitable is a sandbox that the user can enter beside its calls.
type Visitable interface {
	Sandbox
	// Open opens a stream: to a program on a terminal of its own, or else to a port of the
	// sandbox's own loopback. The caller closes it.
	Open(ctx context.Context, terminal *frame.Terminal, port uint16) (Stream, error)
	// Look returns the files of the workspace that have changed since the last Look, the first of
	// them by their absolute paths. The first Look is empty.
	Look(ctx context.Context) (paths []string, count int, err error)
	// Examine returns the ports on which code listens, and the memory in use, in bytes, which is 0
	// if it is not known.
	Examine(ctx context.Context) (ports []uint16, memory int64, err error)
}

// Stream is a way into a sandbox. Read returns io.EOF at its end, and its methods may be called at
// the same time. What the sandbox sends is bounded while it is not read, and Write waits while the
// sandbox does not read.
type Stream interface {
	io.ReadWriteCloser
	// CloseWrite ends the input.
	CloseWrite() error
	Resize(frame.Terminal) error
	// ExitCode is the exit status of the program after the end of Read.
	ExitCode() int
}

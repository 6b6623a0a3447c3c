package sandbox

import (
	"context"
	"io"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Visitable is a sandbox that the user can enter beside its calls.
type Visitable interface {
	Sandbox
	// Open opens a stream to what a request with the type [frame.Open] names. The caller closes it. Until then ask,
	// which may be nil, answers the questions of the program.
	Open(ctx context.Context, to frame.Request, ask Ask) (Stream, error)
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
	// Next is Read for a stream with several outputs: stream is [frame.Stdout], [frame.Stderr], or
	// "" for the only one.
	Next(p []byte) (n int, stream string, err error)
	Resize(frame.Terminal) error
	// Signal sends a signal to a program without a terminal.
	Signal(number int) error
	// ExitCode is the exit status of the program after the end of Read.
	ExitCode() int
}

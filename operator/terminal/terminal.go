package terminal

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// Is reports whether a stream is a terminal.
func Is(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Size returns the size of a terminal. If that is not known, it is 24 rows of 80 columns.
func Size(file *os.File) frame.Terminal {
	columns, rows, err := term.GetSize(int(file.Fd()))
	if err != nil || rows == 0 || columns == 0 {
		return frame.Terminal{Rows: 24, Columns: 80}
	}
	return frame.Terminal{Rows: uint16(rows), Columns: uint16(columns)}
}

// rawTerminal is a terminal that delivers each key as it is pressed.
type rawTerminal struct {
	fd     int
	before *term.State
	size   func() frame.Terminal
}

// makeRaw makes a terminal raw. The caller restores it.
func makeRaw(file *os.File) (*rawTerminal, error) {
	r := &rawTerminal{fd: int(file.Fd()), size: func() frame.Terminal { return Size(file) }}
	var err error
	if r.before, err = term.MakeRaw(r.fd); err != nil {
		return nil, fmt.Errorf("make the terminal raw: %w", err)
	}
	return r, nil
}

// again makes the terminal raw after a restore.
func (r *rawTerminal) again() error {
	if _, err := term.MakeRaw(r.fd); err != nil {
		return fmt.Errorf("make the terminal raw again: %w", err)
	}
	return nil
}

// restore undoes makeRaw. It discards input that was not read, and answers of the terminal that
// are still on their way: they are for the sandbox, not for the program that reads next.
func (r *rawTerminal) restore(screen *Screen, keys *keyboard) {
	if screen.restore() {
		keys.drain(screen.w, r.size())
	}
	_ = term.Restore(r.fd, r.before)
	_ = host.FlushInput(r.fd)
}

// Visible returns a writer to w for the output of code, which filters it if w is a terminal.
func Visible(w io.Writer) io.Writer {
	if !Is(w) {
		return w
	}
	return hostile.Terminal(w, false)
}

// Reset ends colours and hidden text that code left set, before others write.
func Reset(w io.Writer) {
	if filter, is := w.(*hostile.Filter); is {
		filter.Reset()
	}
}

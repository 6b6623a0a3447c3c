package limitkeeper

import (
	"errors"
	"io"
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// file is a file of /proc that every scan reads. It stays open, because to open it takes
// longer than to read it. It is not safe for concurrent use.
type file struct {
	*os.File       // or nil
	err      error // of opening it
	limit    int
	text     []byte
}

// openFile returns a file of at most limit bytes. If it cannot be opened, each read
// returns the error.
func openFile(path string, limit int) *file {
	f, err := os.Open(path)
	return &file{File: f, err: err, limit: limit}
}

// read returns the present text, which is valid until the next read.
func (f *file) read() ([]byte, error) {
	if f.err != nil {
		return nil, f.err
	}
	for {
		n, err := f.ReadAt(f.text, 0)
		switch {
		case errors.Is(err, io.EOF):
			return f.text[:n], nil
		case err != nil:
			return nil, err
		case len(f.text) > f.limit:
			return nil, &os.PathError{Op: "read", Path: f.Name(), Err: bounded.ErrTooLarge}
		}
		f.text = make([]byte, max(2*len(f.text), 4<<10))
	}
}

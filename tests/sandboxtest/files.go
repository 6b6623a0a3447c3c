package sandboxtest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/filetree"
)

// failing is a reader that always fails.
type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// Grow implements [sandbox.Grower].
func (s *Sandbox) Grow(ctx context.Context, exec string) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if !s.machine.Grows {
		return errors.New("it cannot grow")
	}
	return nil
}

// Add implements [sandbox.Grower].
func (s *Sandbox) Add(ctx context.Context, grow string) error { return s.Grow(ctx, grow) }

// SaveFiles implements [sandbox.Saver]. The files have no folders.
func (s *Sandbox) SaveFiles(ctx context.Context, extent sandbox.Extent) io.Reader {
	if err := s.usable(ctx); err != nil {
		return failing{err}
	}
	s.workspace.mu.Lock()
	defer s.workspace.mu.Unlock()
	var buffer bytes.Buffer
	if s.workspace.saved && extent != sandbox.All {
		return &buffer
	}
	archive := tar.NewWriter(&buffer)
	for _, name := range slices.Sorted(maps.Keys(s.workspace.files)) {
		data := s.workspace.files[name]
		e := filetree.Entry{Kind: filetree.File, Path: strings.TrimPrefix(name, inWorkspace("")+"/"), Mode: 0o644, Size: int64(len(data))}
		if len(data) > 0 {
			e.Pieces = []filetree.Piece{{Length: int64(len(data))}}
		}
		err := filetree.Write(archive, e)
		if err == nil {
			_, err = archive.Write(data)
		}
		if err != nil {
			return failing{err}
		}
	}
	if err := archive.Close(); err != nil {
		return failing{err}
	}
	s.workspace.saved = true
	return &buffer
}

// RestoreFiles implements [sandbox.Saver].
func (s *Sandbox) RestoreFiles(ctx context.Context, archive io.Reader) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	data, err := io.ReadAll(archive)
	if err != nil {
		return err
	}
	for from := filetree.NewReader(bytes.NewReader(data)); len(data) > 0; {
		e, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var content []byte
		if err == nil {
			content, err = io.ReadAll(from)
		}
		if err != nil {
			return err
		}
		s.WriteFile(path.Clean(e.Path), content)
	}
	s.workspace.mu.Lock()
	defer s.workspace.mu.Unlock()
	s.workspace.saved = true
	return nil
}

func (s *Sandbox) usable(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason != "" {
		return &sandbox.DeadError{Reason: s.reason}
	}
	return ctx.Err()
}

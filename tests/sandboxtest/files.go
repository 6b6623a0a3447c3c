package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/filetree"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

func (w *Workspace) isSaved() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.saved
}

// SaveFiles implements [sandbox.Saver]. It copies every file, in a part of its own.
func (s *Sandbox) SaveFiles(ctx context.Context, _ bool, send func(part []byte) error) (frame.Copied, error) {
	if err := s.usable(ctx); err != nil {
		return frame.Copied{}, err
	}
	s.workspace.mu.Lock()
	defer s.workspace.mu.Unlock()
	var copied frame.Copied
	for _, name := range slices.Sorted(maps.Keys(s.workspace.files)) {
		data := s.workspace.files[name]
		name = strings.TrimPrefix(name, inWorkspace("")+"/")
		var part []byte
		for at, c := range name {
			if c == '/' {
				part = filetree.Append(part, filetree.Record{Kind: filetree.Folder, Path: name[:at], Mode: 0o755})
			}
		}
		part = filetree.Append(part, filetree.Record{Kind: filetree.File, Path: name, Mode: 0o644, Size: int64(len(data))})
		if len(data) > 0 {
			part = filetree.Append(part, filetree.Record{Kind: filetree.Data, Data: data})
		}
		if err := send(part); err != nil {
			return copied, err
		}
		copied.Entries++
		copied.Bytes += int64(len(data))
	}
	s.workspace.saved = true
	return copied, nil
}

// RestoreFiles implements [sandbox.Saver]. A file has to be in one part.
func (s *Sandbox) RestoreFiles(ctx context.Context, part []byte, last bool) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	name := ""
	for r, err := range filetree.Records(part) {
		switch {
		case err != nil:
			return err
		case r.Kind == filetree.File:
			name = r.Path
			s.WriteFile(name, nil)
		case r.Kind == filetree.Data && name == "":
			return errors.New("a piece of no file")
		case r.Kind == filetree.Data:
			s.WriteFile(name, slices.Clone(r.Data))
		case r.Kind != filetree.Folder:
			return fmt.Errorf("%s is of the kind %c, which this machine does not have", path.Clean(r.Path), r.Kind)
		}
	}
	if last {
		s.workspace.mu.Lock()
		defer s.workspace.mu.Unlock()
		s.workspace.saved = true
	}
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

package framed

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/filetree"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// saveTimeout bounds the wait for one part of a copy: before the first one, the agent
// scans the whole workspace.
const saveTimeout = 30 * time.Second

// SaveFiles implements [sandbox.Saver].
func (s *Sandbox) SaveFiles(ctx context.Context, extent sandbox.Extent) io.Reader {
	request := frame.Request{Type: frame.Save, Full: extent == sandbox.All, Changes: extent == sandbox.Changes}
	return &copyReader{ctx: ctx, sandbox: s, request: request}
}

// copyReader asks the agent for the parts of a copy.
type copyReader struct {
	ctx     context.Context
	sandbox *Sandbox
	request frame.Request // for the next part
	part    []byte        // that has not been read
	err     error
}

func (r *copyReader) Read(p []byte) (int, error) {
	if len(r.part) == 0 && r.err == nil {
		reply, err := r.sandbox.request(r.ctx, r.request, frame.Part, saveTimeout)
		if err == nil && len(reply.Contents) == 0 {
			err = io.EOF
		}
		r.part, r.err, r.request.Next = reply.Contents, err, true
	}
	if r.err != nil {
		return 0, r.err
	}
	n := copy(p, r.part)
	r.part = r.part[n:]
	return n, nil
}

// RestoreFiles implements [sandbox.Saver].
func (s *Sandbox) RestoreFiles(ctx context.Context, archive io.Reader) error {
	buffer := make([]byte, filetree.MaxPart)
	for {
		n, err := io.ReadFull(archive, buffer)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		// An empty part ends the archive.
		if _, err := s.request(ctx, frame.Request{Type: frame.Restore, Contents: buffer[:n]}, frame.Restored, saveTimeout); n == 0 || err != nil {
			return err
		}
	}
}

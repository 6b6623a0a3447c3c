package framed

import (
	"context"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/filetree"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// saveTimeout bounds the wait for one part of a copy: before the first one, the agent
// scans the whole workspace.
const saveTimeout = 30 * time.Second

// SaveFiles implements [sandbox.Saver].
func (s *Sandbox) SaveFiles(ctx context.Context, full bool, send func(part []byte) error) (frame.Copied, error) {
	request := frame.Request{Type: frame.Save, Full: full}
	for {
		reply, err := s.ask(ctx, request, frame.Part, saveTimeout)
		if err != nil {
			return frame.Copied{}, err
		}
		// An honest agent has no part without a record before the last one.
		if len(reply.Contents) == 0 && reply.Copied == nil {
			s.fail("the agent sent a copy of files without an end")
			return frame.Copied{}, s.death()
		}
		for _, err := range filetree.Records(reply.Contents) {
			if err != nil {
				s.fail("the agent sent a copy of files that has %v", err)
				return frame.Copied{}, s.death()
			}
		}
		if err := send(reply.Contents); err != nil {
			return frame.Copied{}, err
		}
		if reply.Copied != nil {
			return checked(*reply.Copied), nil
		}
		request = frame.Request{Type: frame.Save, Next: true}
	}
}

// checked makes numbers and a name of a sandbox fit to be shown.
func checked(copied frame.Copied) frame.Copied {
	return frame.Copied{
		Entries: min(max(copied.Entries, 0), filetree.MaxEntries),
		Bytes:   min(max(copied.Bytes, 0), filetree.MaxSize),
		Skipped: min(max(copied.Skipped, 0), filetree.MaxEntries),
		Example: sandbox.OneLine(copied.Example),
	}
}

// RestoreFiles implements [sandbox.Saver].
func (s *Sandbox) RestoreFiles(ctx context.Context, part []byte, last bool) error {
	_, err := s.ask(ctx, frame.Request{Type: frame.Restore, Contents: part, Last: last}, frame.Restored, saveTimeout)
	return err
}

package server

import (
	"errors"
	"fmt"
	"io"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/filetree"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// files copies the files of the workspace to the runtime and back.
type files struct {
	tracker  workspace.Tracker
	copy     *workspace.Copy // that is being sent, or nil
	restore  *io.PipeWriter  // takes the parts that come, or nil
	restored chan error      // has the result of the restore
	// settled says that it is too late to restore files.
	settled bool
}

// answerFiles answers a request to save or restore files.
func (e *executor) answerFiles(req frame.Request) frame.Reply {
	var reply frame.Reply
	var err error
	if req.Type == frame.Save {
		reply.Type = frame.Part
		reply.Contents, err = e.save(req)
	} else {
		reply.Type = frame.Restored
		err = e.restore(req.Contents)
	}
	if err != nil {
		reply = frame.Reply{Type: frame.Error, Message: err.Error()}
	}
	reply.ID = req.ID
	return reply
}

// save returns the next part of a copy, which is empty after the last one.
func (e *executor) save(req frame.Request) (part []byte, err error) {
	f := &e.files
	if !req.Next {
		if f.copy != nil {
			f.copy.Close() // the runtime gave it up
		}
		f.copy, err = f.tracker.Copy(req.Full, req.Changes, e.logf)
	}
	if f.copy == nil || err != nil {
		return nil, err
	}
	part = make([]byte, filetree.MaxPart)
	n, err := io.ReadFull(f.copy, part)
	switch {
	case err == nil || errors.Is(err, io.ErrUnexpectedEOF):
		return part[:n], nil
	case errors.Is(err, io.EOF):
		f.copy.Done()
		err = nil
	}
	f.copy.Close()
	f.copy = nil
	return nil, err
}

// restore writes the next part of a copy into the workspace. An empty part ends the copy,
// or says that there is none. Either way, what is in the workspace then counts as saved,
// and is not for the next result to name.
func (e *executor) restore(part []byte) error {
	f := &e.files
	if f.settled || e.number > 0 {
		return errors.New("restore must come before the first execute")
	}
	if f.restore == nil && len(part) > 0 {
		var from *io.PipeReader
		from, f.restore = io.Pipe()
		f.restored = make(chan error, 1)
		go func() {
			err := e.root.Restore(from)
			from.CloseWithError(err)
			f.restored <- err
		}()
	}
	if len(part) > 0 {
		if _, err := f.restore.Write(part); err == nil {
			return nil
		}
	}
	f.settled = true
	if f.restore != nil {
		f.restore.Close()
		if err := <-f.restored; err != nil {
			return fmt.Errorf("restore the workspace: %w", err)
		}
	}
	e.root.Changed()
	return f.tracker.Settle()
}

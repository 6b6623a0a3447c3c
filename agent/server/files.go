package server

import (
	"errors"
	"fmt"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
)

// maxTracked is how many entries of the workspace are compared before a result is sent,
// of those that may have changed: each takes about a microsecond. More are compared when
// the runtime asks for a copy, which is after the answer.
const maxTracked = 16

// files copies the files of the workspace to the runtime and back.
type files struct {
	tracker   workspace.Tracker
	restorer  *workspace.Restorer // while parts of a copy come
	forbidden bool                // to restore: a call has run, or a copy has come
}

// answerFiles answers a request to save or restore files.
func (e *executor) answerFiles(req *frame.Request) frame.Reply {
	var reply frame.Reply
	var err error
	if req.Type == frame.Save {
		reply, err = e.files.save(req)
	} else {
		reply = frame.Reply{Type: frame.Restored}
		err = e.restore(req)
	}
	if err != nil {
		reply = frame.Reply{Type: frame.Error, Message: err.Error()}
	}
	reply.ID = req.ID
	return reply
}

func (f *files) save(req *frame.Request) (frame.Reply, error) {
	if !req.Next {
		if err := f.tracker.Begin(req.Full); err != nil {
			return frame.Reply{}, err
		}
	}
	part, copied, err := f.tracker.Next()
	return frame.Reply{Type: frame.Part, Contents: part, Copied: copied}, err
}

// restore writes a part of a copy into the workspace. What it writes is not for the
// next result to name.
func (e *executor) restore(req *frame.Request) error {
	f := &e.files
	if f.forbidden || e.number > 0 {
		return errors.New("restore must come before the first execute")
	}
	if f.restorer == nil {
		f.restorer = &workspace.Restorer{Root: e.root}
	}
	err := f.restorer.Write(req.Contents)
	if err == nil && !req.Last {
		return nil
	}
	if err == nil {
		err = f.restorer.End()
	}
	f.restorer.Close()
	f.restorer, f.forbidden = nil, true
	if err != nil {
		return fmt.Errorf("restore the workspace: %w", err)
	}
	e.root.Changed()
	return f.tracker.Settle()
}

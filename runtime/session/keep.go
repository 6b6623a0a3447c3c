package session

import (
	"context"
	"errors"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/sessionfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

const (
	// saveTimeout bounds a save, for which the next call of the session waits.
	saveTimeout = time.Minute
	// lastSavesTimeout bounds the wait for saves when the server ends.
	lastSavesTimeout = 1500 * time.Millisecond
)

// kept has the files of a session on disk. The Manager's mutex protects it.
type kept struct {
	files *sessionfiles.Files // nil while the session has no sandbox, or none is kept
	// saving says that a save runs; then files are the save's to close.
	saving bool
	// unsaved is a sandbox that may have files which are not saved.
	unsaved sandbox.Sandbox
	// problem is why the last save failed.
	problem string
}

// close lets others have the files, when no save needs them any more.
func (k *kept) close() {
	if k.files != nil && !k.saving {
		k.files.Close()
	}
	*k = kept{saving: k.saving}
}

// startWithFiles starts a sandbox for a session whose turn the caller has, or wakes the
// one that sleeps, with the files that are kept for it. The result says which.
func (m *Manager) startWithFiles(ctx context.Context, s *session, c call.Call) (box sandbox.Sandbox, began call.Result, err error) {
	if m.Files == nil {
		if box, began.Woken, err = m.wake(ctx, s, c); box == nil && err == nil {
			box, err = m.start(ctx, s, c)
		}
		return box, began, err
	}
	files, err := m.Files.Acquire(sessionfiles.Key{Principal: c.Principal, Session: c.Session, Env: c.Env.Added().Base})
	if err != nil {
		var inUse *sessionfiles.InUseError
		if errors.As(err, &inUse) {
			return nil, began, &call.InUseError{Session: c.Session, PID: inUse.Holder.PID, About: inUse.Holder.About}
		}
		return nil, began, err
	}
	if box, began.Woken, err = m.wake(ctx, s, c); box != nil {
		// Its files are there.
		m.mu.Lock()
		defer m.mu.Unlock()
		s.kept.files = files
		return box, began, nil
	}
	if err == nil {
		box, err = m.start(ctx, s, c)
	}
	if err != nil {
		files.Close()
		return nil, began, err
	}
	restored, err := m.restore(ctx, files, box)
	if err != nil {
		box.Kill()
		if ctx.Err() != nil || isClosed(m.closed) {
			files.Close()
			return nil, began, err
		}
		folder, asideErr := files.SetAside()
		if asideErr != nil {
			files.Close()
			return nil, began, asideErr
		}
		m.Log.Error("kept files of a session cannot be used and are set aside", "session", c.Session, "env", c.Env.Name, "error", err, "folder", folder)
		restored = &call.Restored{Lost: err.Error()}
		if box, err = m.start(ctx, s, c); err != nil {
			files.Close()
			return nil, began, err
		}
	}
	m.mu.Lock()
	s.kept.files = files
	m.mu.Unlock()
	began.Restored = restored
	return box, began, nil
}

// restore writes the files that are kept into a sandbox.
func (m *Manager) restore(ctx context.Context, files *sessionfiles.Files, box sandbox.Sandbox) (*call.Restored, error) {
	head, err := files.Head()
	if head == nil || err != nil {
		return nil, err
	}
	err = files.Restore(func(part []byte) error { return box.RestoreFiles(ctx, part, false) })
	if err == nil {
		err = box.RestoreFiles(ctx, nil, true)
	}
	if err != nil {
		return nil, err
	}
	return &call.Restored{Files: head.Entries, Bytes: head.Bytes, Saved: head.Saved}, nil
}

// executed takes note of a call that has run.
func (m *Manager) executed(s *session, box sandbox.Sandbox, result *call.Result, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.kept.files == nil {
		return
	}
	result.NotSaved = s.kept.problem
	result.FilesSaved = err != nil
	if err == nil && (!result.Unchanged || s.kept.problem != "") {
		s.kept.unsaved = box
	}
}

// takeSave returns what saves the files that the call which has a turn left; nil where
// none have to be.
func (m *Manager) takeSave(s *session) func() {
	box, files := s.kept.unsaved, s.kept.files
	if box == nil || files == nil {
		return nil
	}
	s.kept.unsaved, s.kept.saving = nil, true
	return func() { m.save(s, box, files) }
}

func (m *Manager) save(s *session, box sandbox.Sandbox, files *sessionfiles.Files) {
	ctx, cancel := context.WithTimeout(context.Background(), saveTimeout)
	defer cancel()
	began := time.Now()
	copied, err := files.Save(func(full bool, send func([]byte) error) (frame.Copied, error) {
		return box.SaveFiles(ctx, full, send)
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	s.kept.saving = false
	if s.kept.files != files { // the session ended meanwhile
		files.Close()
	} else {
		s.kept.problem = ""
		if err != nil {
			s.kept.problem = err.Error()
		}
	}
	switch {
	case err != nil && !isClosed(box.Done()):
		m.Log.Warn("files of a session are not saved", "session", s.key.ID, "error", err)
	case copied.Skipped > 0:
		m.Log.Warn("some files of a session cannot be kept", "session", s.key.ID, "files", copied.Skipped, "such_as", copied.Example)
	}
	m.Log.Debug("files of a session saved", "session", s.key.ID, "ms", time.Since(began).Milliseconds())
}

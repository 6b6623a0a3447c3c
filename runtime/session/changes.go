package session

import (
	"context"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// RecordChanges has what each session changes in a project that is an overlay saved as a
// patch, after every call that has changed something. It is called before the first call.
func (m *Manager) RecordChanges(store *changes.Store, project sandbox.Project) {
	m.changes, m.project = store, project
}

// recordChanges begins to record what a sandbox changes. It returns nil where nothing can
// be recorded.
func (m *Manager) recordChanges(c call.Call, box sandbox.Sandbox) *changes.Record {
	if m.changes == nil {
		return nil
	}
	upper := box.Upper()
	if upper == nil {
		m.log.Warn("what a session changes in the project is not recorded: its environment was built by an earlier version", "session", c.Session, "env", c.Env.Name)
		return nil
	}
	record, err := m.changes.Begin(changes.Head{
		Key: changes.Key{Principal: c.Principal, Session: c.Session}, Env: c.Env.Name,
		Project: m.project.Dir, Mount: m.project.Mount,
	}, upper)
	if err != nil {
		m.log.Warn("what a session changes in the project is not recorded", "session", c.Session, "error", err)
		return nil
	}
	return record
}

// findChanges finds what is changed after a call that began at this time, and has it
// saved when the call is answered.
func (m *Manager) findChanges(s *session, box sandbox.Sandbox, result *call.Result, began time.Time) {
	member, _ := box.(*member)
	if member == nil || member.changes == nil {
		return
	}
	summary, first, unsaved := member.changes.Early()
	if summary != nil {
		result.Changes = &call.Changes{Summary: *summary, First: first}
	}
	if !unsaved {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.saveChanges = func() { member.changes.Save(context.Background(), began) }
}

// closeChanges ends what records the changes of a sandbox, when a save that runs is done.
func (m *member) closeChanges() {
	if m.changes != nil {
		go m.changes.Close()
	}
}

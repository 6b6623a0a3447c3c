package session

import (
	"context"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// recordChanges begins to record what a sandbox changes. It returns nil where nothing can
// be recorded.
func (m *Manager) recordChanges(c call.Call, box sandbox.Sandbox) *changes.Record {
	if m.Changes == nil {
		return nil
	}
	upper := box.Upper()
	if upper == nil {
		m.Log.Warn("what a session changes in the project is not recorded: its environment was built by an earlier version", "session", c.Session, "env", c.Env.Name)
		return nil
	}
	record, err := m.Changes.Begin(changes.Head{
		Key: changes.Key{Principal: c.Principal, Session: c.Session}, Env: c.Env.Name,
		Project: m.Project.Dir, Mount: m.Project.Mount,
	}, upper)
	if err != nil {
		m.Log.Warn("what a session changes in the project is not recorded", "session", c.Session, "error", err)
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

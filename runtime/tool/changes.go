package tool

import (
	"errors"
	"fmt"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes/layer"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

const (
	// changesName is the name of the resource of a session that has what it changed in
	// the project.
	changesName = "changes.patch"
	changesType = "text/x-diff"
)

// changes links the patch of the session's changes from the first answer that knows of
// some.
func (a answer) changes() []mcp.Content {
	if a.result.Changes == nil || !a.result.Changes.First {
		return nil
	}
	return []mcp.Content{mcp.NewResourceLink(address(a.call.Session, changesName), changesName, "what this session changed in the project, for git apply", changesType)}
}

// changesFacts are the facts about what a session has changed in the project.
func changesFacts(session string, c *call.Changes) map[string]any {
	facts := map[string]any{
		"uri": address(session, changesName), "added": c.Added, "changed": c.Changed, "deleted": c.Deleted, "bytes": c.Bytes,
	}
	if c.LeftOutCount > 0 {
		facts["left_out"] = c.LeftOut
		facts["left_out_count"] = c.LeftOutCount
	}
	if c.Incomplete {
		facts["incomplete"] = true
	}
	return facts
}

// readChanges reads the patch of the read's session.
func (r *Read) readChanges() ([]byte, error) {
	data, err := r.tool.Changes.Read(changes.Key{Principal: r.ticket.Key.Principal, Session: r.ticket.Key.ID}, maxResource)
	var large *layer.TooLargeError
	if errors.As(err, &large) {
		return nil, fmt.Errorf("the patch has %s, more than the %s that can be read at once: a user reads it with nix-sandbox-mcp changes %s", size(large.Size), size(large.Limit), r.ticket.Key.ID)
	}
	return data, err
}

// isChanges reports whether a read is of the patch of a session's changes.
func (r *Read) isChanges() bool {
	return r.tool.Changes != nil && r.ticket != nil && r.name == workspace+changesName
}

package tool

import (
	"fmt"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

// words returns the remarks about a note for the model, and the facts about it for programs. Both
// may be missing.
func (a answer) words(note call.Note) (remarks []remark, facts map[string]any) {
	switch n := note.(type) {
	case call.Grown:
		return []remark{{opening: stateLost, rest: variablesLost + ": it goes on in env \"" + a.call.Env.Name + "\""}}, nil
	case call.Resumed:
		facts = map[string]any{"resumed": n.Lost == "", "suspended_seconds": int64(n.After.Seconds())}
		if n.Lost != "" {
			return []remark{{opening: newSession, rest: fmt.Sprintf("the earlier one slept for %s and cannot go on: %s", roughly(n.After), n.Lost)}}, facts
		}
		return []remark{{opening: awake, rest: roughly(n.After) + " and goes on as it was"}}, facts
	case call.Branched:
		return nil, map[string]any{"branched_from": n.From}
	case call.Restored:
		return a.restored(n), nil
	case call.Unsaved:
		return []remark{{opening: notSaved, rest: n.Reason}}, nil
	case call.Changes:
		return nil, map[string]any{"changes": changesFacts(a.call.Session, n)}
	}
	return nil, nil // call.Survived is part of the remark about the sandbox's death
}

// notes are the remarks about why the session is a new one, and about notes.
func (a answer) notes() (remarks []remark) {
	if a.result.Restart != nil && call.Find[call.Resumed](a.result.Notes) == nil && call.Find[call.Restored](a.result.Notes) == nil {
		remarks = append(remarks, restarted(a.result.Restart))
	}
	for _, note := range a.result.Notes {
		worded, _ := a.words(note)
		remarks = append(remarks, worded...)
	}
	return remarks
}

// restarted says why a session is a new one.
func restarted(why *call.Restart) remark {
	if why.FilesKept {
		return remark{opening: stateLost, rest: variablesLost + ": the sandbox of this env died"}
	}
	rest := "the earlier one ended because its sandbox died"
	switch why.Cause {
	case call.Idle:
		rest = fmt.Sprintf("the earlier one ended after %g s idle", why.After.Seconds())
	case call.Lifetime:
		rest = fmt.Sprintf("the earlier one ended at its lifetime of %g s", why.After.Seconds())
	case call.Replaced:
		rest = "the earlier one ended when the server was started again"
	}
	return remark{opening: newSession, rest: rest}
}

// restored says which of its earlier files a session has, and why it is a new one.
func (a answer) restored(files call.Restored) []remark {
	if call.Find[call.Resumed](a.result.Notes) != nil {
		return nil // that says why
	}
	was := "the earlier one has ended"
	if a.result.Restart != nil {
		was = restarted(a.result.Restart).rest
	}
	switch {
	case files.Removed:
		was += "; its kept files were removed, because all kept files together need more than keep_mb"
	case files.Lost != "":
		was += "; its kept files cannot be used and are set aside, so that this one begins without: " + files.Lost
	default:
		was += fmt.Sprintf("; its variables are gone, its files in /workspace are kept (%d, %s, last saved %s)",
			files.Files, size(files.Bytes), files.Saved.UTC().Format("2006-01-02 15:04 MST"))
	}
	return []remark{{opening: newSession, rest: was}}
}

// roughly words a duration in its largest sensible unit.
func roughly(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

const (
	// changesName is the name of a session's resource that has its changes to the project.
	changesName = "changes.patch"
	changesType = "text/x-diff"
)

// changes links the session's patch from the first answer that mentions changes.
func (a answer) changes() []mcp.Content {
	if c := call.Find[call.Changes](a.result.Notes); c == nil || !c.First {
		return nil
	}
	return []mcp.Content{mcp.NewResourceLink(address(a.call.Session, changesName), changesName, "what this session changed in the project, for git apply", changesType)}
}

// changesFacts are the facts about a session's changes to the project.
func changesFacts(session string, c call.Changes) map[string]any {
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

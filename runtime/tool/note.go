package tool

import (
	"fmt"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
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
			return []remark{{opening: newSession, rest: fmt.Sprintf("the earlier one was suspended for %s and cannot be resumed: %s", roughly(n.After), n.Lost)}}, facts
		}
		return []remark{{opening: resumed, rest: "the session was suspended for " + roughly(n.After) + " and goes on as it was"}}, facts
	case call.Branched:
		return nil, map[string]any{"branched_from": n.From}
	case call.Restored:
		return a.restored(n), nil
	case call.Unsaved:
		if n.Changes {
			return []remark{{opening: changed, rest: "not saved: " + n.Reason}}, nil
		}
		return []remark{{opening: notSaved, rest: n.Reason}}, nil
	case call.Tools:
		if len(n.Refused) > 0 {
			remarks = []remark{{opening: onTools, rest: "refused " + strings.Join(n.Refused, ", ") + ", which the user has not allowed"}}
		}
		return remarks, map[string]any{"tools": n}
	case call.Copied:
		return a.copied(n), nil
	case call.Visited:
		return []remark{{opening: visited, rest: "files in this session: " + named(n.Files, n.Count)}}, nil
	case call.Listening:
		return a.listening(n), nil
	case call.Changes:
		if n.First {
			remarks = []remark{{opening: changed, rest: a.howToApply()}}
		}
		return remarks, map[string]any{"changes": struct {
			call.Changes
			URI string `json:"uri"`
		}{n, address(a.call.Session, changesName)}}
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
	case call.NoMemory:
		rest = "the earlier one was idle, and ended because the machine was short of memory"
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
	case files.UsedBy != "":
		was = fmt.Sprintf("another server of this user (%s) has a session %q with its kept files; this one begins without them, and its own are not kept", files.UsedBy, a.call.Session)
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

// copied says where the user finds the outputs, and which not. A principal of a server over HTTP has
// no folders there.
func (a answer) copied(n call.Copied) []remark {
	where := n.To
	if a.call.Principal != "" {
		where = "the server's folder of outputs"
	}
	text := where
	if n.LeftOutCount > 0 {
		text += fmt.Sprintf(": %d of %d files", n.Files, n.Files+n.LeftOutCount)
	}
	// Those with one reason are named together.
	var reasons []string
	names := map[string][]string{}
	for _, left := range n.LeftOut {
		if names[left.Reason] == nil {
			reasons = append(reasons, left.Reason)
		}
		names[left.Reason] = append(names[left.Reason], quoteName(bounded.Head(left.Path, 100)))
	}
	named := 0
	for _, reason := range reasons[:min(maxNamed, len(reasons))] {
		text += fmt.Sprintf("; not %s, because %s", strings.Join(names[reason], ", "), bounded.Head(reason, 200))
		named += len(names[reason])
	}
	if more := n.LeftOutCount - named; more > 0 {
		text += fmt.Sprintf("; nor %d more", more)
	}
	return []remark{{opening: copied, rest: text}}
}

// named names files of the workspace, relative to it, and says how many more there are.
func named(files []string, count int) string {
	var names []string
	for _, file := range files {
		names = append(names, quoteName(bounded.Head(strings.TrimPrefix(file, "/workspace/"), 100)))
	}
	text := strings.Join(names, ", ")
	if more := count - len(files); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return strings.TrimPrefix(text, " and ")
}

// listening says how the user reaches a port. A session whose name could be an option is left out.
func (a answer) listening(n call.Listening) (remarks []remark) {
	if strings.HasPrefix(a.call.Session, "-") {
		return nil
	}
	for _, port := range n.Ports[:min(len(n.Ports), maxNamed)] {
		remarks = append(remarks, remark{opening: listening, rest: fmt.Sprintf("the user opens port %d with: nix-sandbox-mcp forward %s %d", port, a.call.Session, port)})
	}
	return remarks
}

// howToApply says how the user takes the session's changes to the project. A principal of a
// server over HTTP cannot run commands on the server's machine.
func (a answer) howToApply() string {
	const command = "the user takes them with: nix-sandbox-mcp changes "
	switch {
	case a.call.Principal != "":
		return "the user takes them with the patch " + address(a.call.Session, changesName)
	case strings.HasPrefix(a.call.Session, "-"):
		return command + "--apply -- " + a.call.Session
	}
	return command + a.call.Session + " --apply"
}

// changes links the session's patch from the first answer that mentions changes.
func (a answer) changes() []mcp.Content {
	if c := call.Find[call.Changes](a.result.Notes); c == nil || !c.First {
		return nil
	}
	return []mcp.Content{mcp.NewResourceLink(address(a.call.Session, changesName), changesName, "what this session changed in the project, for git apply", changesType)}
}

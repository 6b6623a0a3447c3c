package call

import (
	"context"
	"encoding/json"
	"time"
)

// A Note is something about a call that its result does not show, such as that its session
// was resumed. Its kinds are the types in this file; package tool words them.
type Note any

// Grown means that the session goes on in another sandbox, with more packages: it has its
// files, and has lost its variables. A sandbox that gets them itself needs no note.
type Grown struct{}

// Resumed means that the session was suspended until this call.
type Resumed struct {
	// After is how long it was suspended.
	After time.Duration
	// Lost says why it could not be resumed, so that it began anew; empty if it was.
	Lost string
}

// Branched means that the session began as a copy of another one.
type Branched struct{ From string }

// Restored describes the files that a session inherited from an earlier session with its name.
type Restored struct {
	Files, Bytes int64
	// Saved is when the earlier session last wrote any of them.
	Saved time.Time
	// Lost says why they cannot be used, so that the session has none; empty if they can.
	Lost string
	// UsedBy describes the server whose live session has them, so that this one has none and keeps none.
	UsedBy string
	// Removed means that they were removed to make room for files of other sessions.
	Removed bool
}

// Unsaved means that the session's files could not be kept as the call before left them, or that what it
// changed in the project could not be saved.
type Unsaved struct {
	Reason  string
	Changes bool
}

// Survived means that the sandbox died during the call, and that the session's files are
// not lost.
type Survived struct {
	// Earlier means that the files are as they were before the call.
	Earlier bool
}

// Changes counts what the session has changed in the project so far. Its JSON is a fact of the call
// for programs.
type Changes struct {
	// Added, Changed and Deleted count files.
	Added   int   `json:"added"`
	Changed int   `json:"changed"`
	Deleted int   `json:"deleted"`
	Bytes   int64 `json:"bytes"`
	// LeftOut are the first of the paths that the session's patch lacks, and LeftOutCount
	// is the number of all.
	LeftOut      []LeftOut `json:"left_out,omitempty"`
	LeftOutCount int       `json:"left_out_count,omitempty"`
	// Incomplete means that there were too many files to visit them all.
	Incomplete bool `json:"incomplete,omitempty"`
	// First means that no earlier answer named changes that are more than caches, and that this
	// one does.
	First bool `json:"-"`
}

// Copied says which files of a call were copied into a folder of the user's.
type Copied struct {
	To    string // absolute, on the host
	Files int
	// LeftOut are the first of the files that were not copied, and LeftOutCount is the number of
	// all.
	LeftOut      []LeftOut
	LeftOutCount int
}

// Visited means that the user has changed files of the session since its last call, and names
// some of them by their absolute paths.
type Visited struct {
	Files []string
	Count int // of all
}

// Listening means that code listens on ports of the sandbox since this call, which the user can
// reach.
type Listening struct{ Ports []uint16 }

// LeftOut is a path that a patch or a copy lacks, and why.
type LeftOut struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Find returns the first note of a kind, or nil.
func Find[N Note](notes []Note) *N {
	for _, note := range notes {
		if found, ok := note.(N); ok {
			return &found
		}
	}
	return nil
}

// ToolUse is one call of a tool by the code of a call.
type ToolUse struct {
	Server string `json:"server"`
	Tool   string `json:"tool"`
	// ArgumentsHash is the SHA-256 of the arguments, in hexadecimal digits.
	ArgumentsHash string `json:"args_sha256"`
	// Outcome is ok, error, denied, timeout, cancelled or unavailable. After a time-out or a
	// cancellation the tool may have done its work.
	Outcome string `json:"outcome"`
	// Took is the time until the answer, and Bytes its size.
	Took  time.Duration `json:"-"`
	Bytes int           `json:"bytes"`
}

// MarshalJSON has the time in milliseconds.
func (u ToolUse) MarshalJSON() ([]byte, error) {
	type fields ToolUse
	return json.Marshal(struct {
		fields
		Milliseconds int64 `json:"ms"`
	}{fields(u), u.Took.Milliseconds()})
}

// Tools counts the calls of tools that the code made. First are the first of them, and Refused
// are the tools that it may not call, by their servers, a few of them. Its JSON is a fact of the call
// for programs.
type Tools struct {
	Calls   int       `json:"calls"`
	Failed  int       `json:"failed"`
	Bytes   int64     `json:"bytes"`
	First   []ToolUse `json:"first"`
	Refused []string  `json:"-"`
}

// ToolObserver is an [Observer] that is told of each call of a tool too, before the code has its
// answer. It waits no longer than the context, but it records what is given up too.
type ToolObserver interface {
	UseTool(context.Context, Call, ToolUse)
}

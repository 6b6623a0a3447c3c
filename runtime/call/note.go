package call

import "time"

// A Note is something about a call that its result does not show, such as that its session
// was resumed. Its kinds are the types in this file; package tool words them.
type Note any

// Grown means that the session goes on in another sandbox, with more packages: it has its
// files, and has lost its variables.
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

// Restored describes the files that a session inherited from an earlier one of its name.
type Restored struct {
	Files, Bytes int64
	// Saved is when the earlier session last wrote any of them.
	Saved time.Time
	// Lost says why they cannot be used, so that the session has none; empty if they can.
	Lost string
	// Removed means that they were removed to make room for files of other sessions.
	Removed bool
}

// Unsaved means that the session's files could not be kept as the call before left them.
type Unsaved struct{ Reason string }

// Survived means that the sandbox died during the call, and that the session's files are
// not lost.
type Survived struct {
	// Earlier means that the files are as they were before the call.
	Earlier bool
}

// Changes counts what the session has changed in the project so far.
type Changes struct {
	Added, Changed, Deleted int // files
	Bytes                   int64
	// LeftOut are the first of the paths that the session's patch lacks, and LeftOutCount
	// is the number of all.
	LeftOut      []LeftOut
	LeftOutCount int
	// Incomplete means that there were too many files to visit them all.
	Incomplete bool
	// First means that no earlier answer had this note.
	First bool
}

// LeftOut is a path that a patch lacks, and why.
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

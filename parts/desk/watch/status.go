package watch

import "time"

// Path is the path of a [Snapshot] at the address of metrics.
const Path = "/live.json"

// Session is a session at this moment.
type Session struct {
	Principal    string  `json:"principal,omitempty"`
	ID           string  `json:"id"`
	Environments string  `json:"environments"`
	Calls        uint64  `json:"calls"`   // begun, with the running ones
	Waiting      int     `json:"waiting"` // calls that run or wait
	Age          float64 `json:"age_seconds"`
	Idle         float64 `json:"idle_seconds"`
	MemoryMB     int64   `json:"memory_mb"` // the limits of its sandboxes
}

// Snapshot is the state of a server at a moment.
type Snapshot struct {
	Version      string      `json:"version"`
	PID          int         `json:"pid"`
	Time         time.Time   `json:"time"`
	Uptime       float64     `json:"uptime_seconds"`
	Project      string      `json:"project,omitempty"` // the folder that sandboxes show
	Environments []string    `json:"environments"`
	Memory       Memory      `json:"memory"`
	Principals   []Principal `json:"principals"`
	Sessions     []Session   `json:"sessions"`
	Running      []Call      `json:"running"`
	// Recent are the calls that ended last, the newest first.
	Recent []Call `json:"recent"`
	// Audit is nil if there is no audit log.
	Audit *Audit `json:"audit"`
}

// Audit is the state of an audit log.
type Audit struct {
	Path    string
	Records uint64 // that this server has written
	Lost    uint64 // that this server could not write
	Failure string // of the last write; empty if it succeeded
}

// Principal counts the calls of a principal since the server started.
type Principal struct {
	Name    string `json:"name"`
	Running int    `json:"running"`
	Calls   uint64 `json:"calls"`
	Refused uint64 `json:"refused"`
	Failed  uint64 `json:"failed"` // neither ok nor refused
	// Seconds is how long its calls took together, with all waits.
	Seconds float64 `json:"seconds"`
	// Sessions are those at this moment, MemoryMB the limits of their sandboxes.
	Sessions int   `json:"sessions"`
	MemoryMB int64 `json:"memory_mb"`
}

// Call is a running or a finished call.
type Call struct {
	Number    uint64    `json:"number"`
	Principal string    `json:"principal,omitempty"`
	Trace     string    `json:"trace_id,omitempty"`
	Env       string    `json:"env"`
	Session   string    `json:"session,omitempty"`
	Began     time.Time `json:"began"`
	// Outcome is that of [call.Outcome], and empty while the call runs.
	Outcome  string        `json:"outcome,omitempty"`
	Reason   string        `json:"reason,omitempty"`
	ExitCode int           `json:"exit_code"`
	Took     time.Duration `json:"took"` // nanoseconds
	// Tools are the calls of tools that the code made, a line each.
	Tools string `json:"tools,omitempty"`
	// Remarks are what the server told the model about the call: limits, refusals of the network,
	// hints.
	Remarks []string `json:"remarks,omitempty"`
	// Waits is what a running call waits for, or "" while its code runs.
	Waits string `json:"waits,omitempty"`

	Code   Text   `json:"-"` // these are in a [Card]
	Stdout Text   `json:"-"`
	Stderr Text   `json:"-"`
	Files  []File `json:"-"` // the first of them
	// FileCount is the number of all files that it wrote.
	FileCount int `json:"-"`
}

// Text is a bounded text: Cut bytes are left out between Head and Tail.
type Text struct {
	Head string `json:"head,omitempty"`
	Cut  int64  `json:"cut,omitempty"`
	Tail string `json:"tail,omitempty"`
}

// File is a file that a call wrote.
type File struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	// Type is that of an image that browsers show without running any of it, else "".
	Type    string `json:"type,omitempty"`
	Content []byte `json:"-"` // of such an image
}

// Card is a call with its contents. While it runs, the output is its end so far, and Line is what came
// last.
type Card struct {
	Call
	Code      Text   `json:"code,omitzero"`
	Stdout    Text   `json:"stdout,omitzero"`
	Stderr    Text   `json:"stderr,omitzero"`
	Line      string `json:"line,omitempty"`
	Files     []File `json:"files,omitempty"`
	FileCount int    `json:"file_count,omitempty"`
}

func cardOf(c Call) Card {
	return Card{Call: c, Code: c.Code, Stdout: c.Stdout, Stderr: c.Stderr, Files: c.Files, FileCount: c.FileCount}
}

// Package status describes the status of a server: JSON that the gateway serves and the command
// top reads.
package status

import (
	"path/filepath"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
)

// Path is the path of a [Snapshot] at the address of metrics.
const Path = "/live.json"

// SocketSuffix ends the names of the sockets in the user's runtime folder.
const SocketSuffix = ".socket"

// Sockets returns the sockets of servers in a folder, including sockets of killed servers.
func Sockets(folder string) []string {
	found, _ := filepath.Glob(filepath.Join(folder, "*"+SocketSuffix)) // the pattern is right
	return found
}

// Session is a session at this moment.
type Session struct {
	Principal    string  `json:"principal,omitempty"`
	ID           string  `json:"id"`
	Environments string  `json:"environments"`
	Calls        int     `json:"calls"` // that run or wait
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
	Environments []string    `json:"environments"`
	Memory       Memory      `json:"memory"`
	Principals   []Principal `json:"principals"`
	Sessions     []Session   `json:"sessions"`
	Running      []Call      `json:"running"`
	// Recent are the calls that ended last, the newest first.
	Recent []Call `json:"recent"`
	// Audit is nil if there is no audit log.
	Audit *audit.State `json:"audit"`
}

// Memory is the memory of the server and of the processes below it.
type Memory struct {
	Server    int64 `json:"server_bytes"`
	Sandboxes int64 `json:"sandboxes_bytes"` // without the pages of programs and libraries
	Processes int   `json:"sandboxes_processes"`
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

// Call is a running call, or one that has ended.
type Call struct {
	Number    uint64    `json:"number"`
	Principal string    `json:"principal,omitempty"`
	Trace     string    `json:"trace_id,omitempty"`
	Env       string    `json:"env"`
	Session   string    `json:"session,omitempty"`
	Began     time.Time `json:"began"`
	// Outcome is empty while the call runs.
	Outcome  string        `json:"outcome,omitempty"`
	Reason   string        `json:"reason,omitempty"`
	ExitCode int           `json:"exit_code"`
	Took     time.Duration `json:"took"` // nanoseconds

	Code   string  `json:"-"` // these are empty without the page
	Stdout string  `json:"-"`
	Stderr string  `json:"-"`
	Images []Image `json:"-"`
}

// Image is an image that a call made.
type Image struct {
	Path, Type string
	Content    []byte
}

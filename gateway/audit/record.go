package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// Record is a line of the log: a call, or the use of a tool by its code.
type Record struct {
	// Time is when the call ended, in UTC.
	Time time.Time `json:"time"`
	// Event is empty for a call.
	Event Event `json:"event,omitempty"`
	// Lost is how many records before this one could not be written.
	Lost uint64 `json:"lost,omitempty"`

	// Who is the principal; empty if there is only one client.
	Who     string `json:"who,omitempty"`
	Trace   string `json:"trace_id,omitempty"`
	Env     string `json:"env,omitempty"`
	Session string `json:"session,omitempty"`
	// Closure identifies the contents of the sandbox, and CodeHash is the SHA-256 of the code.
	Closure   string `json:"closure,omitempty"`
	CodeHash  string `json:"code_sha256,omitempty"`
	CodeBytes int    `json:"code_bytes"`
	// Given is what a program gave with the call.
	Given *Given `json:"given,omitempty"`
	// Outcome is that of [call.Outcome]. Reason is the error of a call that did not run or did
	// not end.
	Outcome  string `json:"outcome,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Limit    string `json:"limit,omitempty"`
	ExitCode int    `json:"exit_code"`
	// Milliseconds is how long the answer took, with all waits.
	Milliseconds int64 `json:"ms"`
	// StdoutBytes and StderrBytes count the whole output, with the part that was cut.
	StdoutBytes int64 `json:"stdout_bytes"`
	StderrBytes int64 `json:"stderr_bytes"`
	Files       int   `json:"files"`

	// Tool is what the code of a call asked a tool for; only in records of [Used].
	Tool *Tool `json:"tool,omitempty"`
}

// Event tells other records from records of calls.
type Event string

// Used is a call of a tool by the code of a call, whose own record follows when that ends.
const Used Event = "tool"

// Tool is a call of a tool.
type Tool struct {
	Server string `json:"server"`
	Name   string `json:"name"`
	// ArgumentsHash is the SHA-256 of the arguments, and Bytes the size of the answer.
	ArgumentsHash string `json:"args_sha256"`
	Bytes         int    `json:"bytes"`
}

// Given is what a program gave with a call: how much, and the SHA-256 of all of it as the JSON of
// [frame.Given], with names in order.
type Given struct {
	StdinBytes int    `json:"stdin_bytes"`
	Variables  int    `json:"variables"`
	Files      int    `json:"files"`
	Hash       string `json:"sha256"`
}

// Bounds of texts that a client chooses, in bytes.
const (
	maxName   = 128
	maxReason = 512
)

func recordOf(c call.Call, result call.Result, err error, took time.Duration) Record {
	r := Record{
		Time: time.Now().UTC(),
		Who:  hostile.Line(c.Principal, maxName), Trace: hostile.Line(c.Trace, maxName),
		Env: hostile.Line(c.Env.Name, maxName), Session: hostile.Line(c.Session, maxName),
		Closure:   hostile.Line(c.Env.Closure, maxName),
		CodeBytes: len(c.Code),
		Outcome:   call.Outcome(result, err), ExitCode: result.ExitCode,
		Milliseconds: took.Milliseconds(),
		StdoutBytes:  int64(result.Stdout.Len()) + result.Stdout.Cut,
		StderrBytes:  int64(result.Stderr.Len()) + result.Stderr.Cut,
		Files:        len(result.Files),
	}
	if c.Code != "" {
		r.CodeHash = hashOf([]byte(c.Code))
	}
	if g := c.Given; g != nil {
		text, _ := json.Marshal(g) // a value that is no JSON is refused before
		r.Given = &Given{StdinBytes: len(g.Stdin), Variables: len(g.Variables), Files: len(g.Files), Hash: hashOf(text)}
	}
	if err != nil {
		r.Reason = hostile.Line(err.Error(), maxReason)
	}
	if result.Limit != nil {
		r.Limit = result.Limit.Name
	}
	return r
}

// size returns about how many bytes the line of a record takes.
func (r Record) size() int {
	line, _ := r.line() // a record that cannot be encoded is not written either
	return len(line)
}

func (r Record) line() ([]byte, error) {
	text, err := json.Marshal(r)
	return append(text, '\n'), err
}

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

// Record is a line of the log: a call, or an event of the log itself.
type Record struct {
	// Seq numbers the records of a log from 1 on, without gaps.
	Seq uint64 `json:"seq"`
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

	// Prev is the hash of the record before this one; empty in the first of a log.
	Prev string `json:"prev"`
}

// Event is an event of the log itself.
type Event string

const (
	// Recovered follows an incomplete line, which was removed. The server or the machine ended
	// while it wrote that.
	Recovered Event = "recovered"
	// Begun is the first record after a log that cannot be continued.
	Begun Event = "begun"
	// Used is a call of a tool by the code of a call, whose own record follows when that ends.
	Used Event = "tool"
)

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

// Bounds of texts that a client chooses, in bytes. A record is shorter than maxLine.
const (
	maxName   = 128
	maxReason = 512
	// chainSize is the size of a number and two hashes, which are added later.
	chainSize = 160
	maxLine   = 8 << 10
)

func recordOf(c call.Call, result call.Result, err error, took time.Duration) Record {
	r := Record{
		Who: plain(c.Principal, maxName), Trace: plain(c.Trace, maxName),
		Env: plain(c.Env.Name, maxName), Session: plain(c.Session, maxName),
		Closure:   plain(c.Env.Closure, maxName),
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
		r.Reason = plain(err.Error(), maxReason)
	}
	if result.Limit != nil {
		r.Limit = result.Limit.Name
	}
	return r
}

// plain returns the head of a text with a ? for each control character, because JSON takes six
// bytes for one.
func plain(text string, most int) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return '?'
		}
		return c
	}, bounded.Head(text, most))
}

// size returns about how many bytes the line of a record takes.
func (r Record) size() int {
	text, _ := json.Marshal(r) // a record that cannot be encoded is not written either
	return len(text) + chainSize
}

// The last field of a line is the hash of the fields before it.
const (
	hashField = `,"hash":"`
	hashEnd   = `"}` + "\n"
	hashSize  = 2 * sha256.Size
)

func (r Record) line() (line []byte, hash string, err error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, "", fmt.Errorf("encode record %d: %w", r.Seq, err)
	}
	text = bytes.TrimSuffix(text, []byte("}"))
	hash = hashOf(text)
	return append(text, hashField+hash+hashEnd...), hash, nil
}

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Errors of [parse].
var (
	errCut     = errors.New("the line is cut")
	errForm    = errors.New("the line is no record")
	errChanged = errors.New("the record was changed: it has another hash than it says")
)

// parse reads a line with its end, and checks its hash.
func parse(line []byte) (r Record, hash string, err error) {
	if !bytes.HasSuffix(line, []byte("\n")) {
		return r, "", errCut
	}
	at := len(line) - len(hashField) - hashSize - len(hashEnd)
	if at < 0 || !bytes.HasPrefix(line[at:], []byte(hashField)) || !bytes.HasSuffix(line, []byte(hashEnd)) {
		return r, "", errForm
	}
	hash = string(line[at+len(hashField) : len(line)-len(hashEnd)])
	if hash != hashOf(line[:at]) {
		return r, "", errChanged
	}
	if err := json.Unmarshal(append(bytes.Clone(line[:at]), '}'), &r); err != nil {
		return r, "", errForm
	}
	return r, hash, nil
}

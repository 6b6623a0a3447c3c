package tool

import (
	"fmt"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// remark is a sentence of the server's own about a call. The model reads it as
// a line in brackets, and every line in brackets that the server writes is
// made here. Output that imitates one is marked; see [markImitations].
type remark struct {
	// amount precedes the opening if that is about an amount, such as "1.2 MB" or "3".
	amount  string
	opening opening
	// rest follows the opening. It may contain bytes of a sandbox.
	rest string
}

// opening is the beginning of a remark. Output that imitates a remark is recognized by it, so a new
// kind of remark needs a new opening.
type opening int

const (
	noOutput opening = iota
	cutHere
	newSession
	resumed
	projectChanged
	changed
	timedOut
	cancelled
	stopped
	crashed
	exitStatus
	stateLost
	sandboxEnded
	onNetwork
	onTools
	outputCut
	binaryOutput
	unshown
	filesGone
	moreFiles
	notSaved
	copied
	visited
	listening
	hint
)

// openings are the words of each opening. They never begin with an amount.
var openings = [...]string{
	noOutput:       "no output",
	cutHere:        "...",
	newSession:     "new session: ",
	resumed:        "resumed: ",
	projectChanged: "host files have changed",
	changed:        "changes to the project: ",
	timedOut:       "timed out after ",
	cancelled:      "cancelled",
	stopped:        "stopped",
	crashed:        "the interpreter died",
	exitStatus:     "exit status ",
	stateLost:      "the session's ",
	sandboxEnded:   "the sandbox ended",
	onNetwork:      "network: ",
	onTools:        "tools: ",
	outputCut:      "of output cut",
	binaryOutput:   "binary output: ",
	unshown:        "not shown: ",
	filesGone:      "written and gone",
	moreFiles:      "more files in ",
	notSaved:       "files are not kept: ",
	copied:         "copied for the user to ",
	visited:        "the user changed ",
	listening:      "listening: ",
	hint:           "hint: ",
}

// String returns the line, without its end.
func (r remark) String() string {
	text := openings[r.opening] + r.rest
	if r.amount != "" {
		text = r.amount + " " + text
	}
	return "[" + hostile.Escape(text, nil) + "]"
}

// separator stands between stdout and stderr.
const separator = "--- stderr ---"

// size words a number of bytes.
func size(bytes int64) string {
	switch {
	case bytes < 1000:
		return fmt.Sprintf("%d bytes", bytes)
	case bytes < 1000*1000:
		return fmt.Sprintf("%.1f KB", float64(bytes)/1000)
	case bytes < 1000*1000*1000:
		return fmt.Sprintf("%.1f MB", float64(bytes)/1000/1000)
	default:
		return fmt.Sprintf("%.1f GB", float64(bytes)/1000/1000/1000)
	}
}

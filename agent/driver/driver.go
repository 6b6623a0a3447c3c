// Package driver holds the programs, one in each interpreter's own language,
// that run code inside an interpreter, and the protocol between them and the
// agent.
//
// A driver has three descriptors beside its standard streams. The first is
// its control channel: the agent writes one line for a call, the driver one
// line when it is done. The second is a file in memory that holds the code:
// the driver's own at the start, then that of each call, so that nothing that
// is large ever waits in a pipe. The third is a file in memory where a driver
// may leave what the next interpreter is to start with.
//
// The code that runs in the interpreter can reach all three. What comes from
// a control channel is therefore a claim: it is bounded, it is parsed here,
// and whatever is not exactly as expected means that the interpreter cannot
// be used any more.
package driver

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed driver.py
var python string

//go:embed driver.sh
var bash string

//go:embed driver.js
var node string

// Driver says how an interpreter is started with its driver.
type Driver struct {
	// Words follow the interpreter's own: they read the driver from the
	// code file and run it.
	Words []string
	// Source is the driver.
	Source string
	// Control is the control channel's descriptor; the code file's is
	// Control+1, the state file's Control+2.
	Control int
	// Name is what the interpreter calls itself in its messages, and is its
	// argument zero where that matters.
	Name string
}

// Types are the interpreter types that have a driver.
var Types = []string{"python", "bash", "node"}

// For returns the driver of an interpreter type. root is the workspace.
func For(kind, root string) (Driver, bool) {
	switch kind {
	case "python":
		// -I: neither the environment nor a file of the workspace can
		// change what the interpreter and the driver import.
		return Driver{
			Words: []string{
				"-I", "-c",
				"exec(compile(__import__('os').pread(4,1<<20,0),'<driver>','exec'),{'__name__':'<driver>'})",
				root,
			},
			Source:  python,
			Control: 3,
		}, true
	case "bash":
		// Scripts use low descriptors by number (exec 3>log); bash itself
		// takes those from 10 on and 255.
		return Driver{
			Words: []string{
				"--norc", "--noprofile", "-c",
				// One line: bash counts the code's lines from this one.
				`IFS= read -r -d '' -u 252 __agent_code; eval "$__agent_code"; while { case $__agent_next_turn in ?*) "$__agent_next_turn" "$@" ;; *) [[ "" ]] ;; esac; } >/dev/null 2>&1; do builtin eval "$__agent_code${__agent_failed:+$(builtin exit "$__agent_failed")}"; done`,
				"bash",
			},
			Source:  bash,
			Control: 251,
		}, true
	case "node":
		return Driver{
			Words: []string{
				"-e",
				"new (require('vm').Script)(require('fs').readFileSync(4,'utf8'),{filename:'agent:driver'}).runInThisContext()(require,(s,o)=>import(s,o),module)",
			},
			Source:  node,
			Control: 3,
		}, true
	}
	return Driver{}, false
}

// Warm is code of a kind that goes the way of a small call and leaves nothing
// but a line of output behind.
func Warm(kind string) string {
	switch kind {
	case "python":
		return "print(1)"
	case "node":
		return "console.log(1)"
	default:
		return "echo 1"
	}
}

// MaxLine is the longest line of a control channel, in bytes.
const MaxLine = 64

// Repeats says whether an interrupt may be sent again to code that goes on:
// node can miss one that comes while it takes up code, and takes no harm from
// a second. In the others the code would be interrupted while it cleans up.
func Repeats(kind string) bool { return kind == "node" }

// Call is what the agent writes to a control channel.
type Call struct {
	Nonce uint64
	// Last says that the interpreter ends with this code, as it would at
	// the end of a program; the exit status is the answer.
	Last bool
	// Late says that the call before was interrupted: its signal may still
	// be on its way through the interpreter.
	Late bool
	// Number counts the calls of a sandbox from 1.
	Number uint64
	// Size is the code's, in bytes.
	Size int
}

// Line returns the call as it is written.
func (c Call) Line() string {
	word := "call"
	switch {
	case c.Last:
		word = "last"
	case c.Late:
		word = "late"
	}
	return fmt.Sprintf("%s %016x %d %d\n", word, c.Nonce, c.Number, c.Size)
}

// Kind is the kind of a [Reply].
type Kind int

// Kinds of replies.
const (
	Ready Kind = iota // the driver is up
	Done              // the call has ended
	Leave             // the interpreter is about to end; its state is in the state file
	Stop              // the code has called exit, and only an interrupt of the interpreter ends it
)

// Reply is a line that a driver wrote.
type Reply struct {
	Kind   Kind
	Nonce  uint64
	Status int // of Done, 0 to 255
}

// ParseReply reads a line without its newline.
func ParseReply(line string) (Reply, error) {
	if len(line) >= MaxLine {
		return Reply{}, fmt.Errorf("driver's line is longer than %d bytes", MaxLine)
	}
	words := strings.Split(line, " ")
	var r Reply
	switch words[0] {
	case "ready":
		if len(words) == 1 {
			return Reply{Kind: Ready}, nil
		}
	case "done", "leave", "stop":
		kinds := map[string]Kind{"done": Done, "leave": Leave, "stop": Stop}
		r.Kind = kinds[words[0]]
		if len(words) < 2 || len(words[1]) != 16 || (len(words) == 3) != (r.Kind == Done) {
			break
		}
		nonce, err := strconv.ParseUint(words[1], 16, 64)
		if err != nil {
			break
		}
		r.Nonce = nonce
		if r.Kind != Done {
			return r, nil
		}
		status, err := strconv.ParseUint(words[2], 10, 8)
		if err != nil {
			break
		}
		r.Status = int(status)
		return r, nil
	}
	return Reply{}, fmt.Errorf("driver wrote %q", line)
}

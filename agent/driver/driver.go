// Package driver describes the programs, one in each interpreter's own
// language, that run code inside an interpreter, and the protocol between them
// and the agent.
//
// The agent's knowledge of an interpreter is data: [Load] reads it from the folder that
// Nix makes of nix/interpreters/NAME for an environment. A driver has three descriptors
// in addition to its standard streams. The first is its control channel: the agent writes
// one line for each call, and the driver writes one line when the call has ended. The
// second is an unnamed file (O_TMPFILE) with the code of the call, so that large code does
// not wait in a pipe. The third is another such file, in which a driver may leave the
// state for the next interpreter.
//
// The code that runs in the interpreter can reach all three, so a line from a control
// channel is only a claim. It is bounded, and if it is not exactly as expected the
// interpreter cannot be used any more.
package driver

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// Driver describes how to start an interpreter with its driver and how to treat it. Its
// JSON is the file driver.json of a driver's folder. An unknown field is an error.
type Driver struct {
	// Program is the driver: the name of a file in the same folder. [Load]
	// makes it an absolute path.
	Program string `json:"program"`
	// Arguments follow the interpreter's own command line, and the path of
	// Program follows them.
	Arguments []string `json:"arguments"`
	// Control is the control channel's descriptor, from 3 to 253. The code
	// file's is Control+1, the state file's Control+2.
	Control int `json:"control"`
	// Warm is code that works like a small call and runs once before the first one. It
	// leaves only a line of output behind.
	Warm string `json:"warm"`
	// Reseed is code that gives the interpreter's random numbers another seed, or empty
	// if it has none. It runs in copies of an interpreter before any other code, and has
	// no other effect.
	Reseed string `json:"reseed"`
	// Grow is code that adds a folder of programs, with the modules that belong to it, to those that the
	// interpreter finds, with @path@ for the folder's path, which has only letters, digits and /-._+?=.
	Grow string `json:"grow"`
	// Stdin is code that makes another file the interpreter's stdin, with @path@ for its path, which
	// has only letters, digits, / and -.
	Stdin string `json:"stdin"`
	// Variable is code that sets a variable, with @name@ for its name, and for its value either
	// @json@ or @text@: the body of a string literal in JSON's notation, without ' # or $ in it.
	// @json@ is the value as JSON; @text@ is the value itself if it is a string.
	Variable string `json:"variable"`
	// RefusesNUL says that the interpreter cannot read code with a NUL byte.
	RefusesNUL bool `json:"refuses_nul"`
	// RepeatInterrupt says that SIGINT may be sent again if the code does not end.
	// Node.js can miss a signal while it begins with code, and a second one does not
	// harm it. In other interpreters it would interrupt the cleanup of the code.
	RepeatInterrupt bool `json:"repeat_interrupt"`
}

const (
	// maxFile bounds driver.json, in bytes.
	maxFile = 64 << 10
	// maxControl leaves numbers for the code file and the state file below
	// 256, which is the fewest descriptors that a process may have.
	maxControl = 253
)

// Load reads the driver in a folder. The error names the file and the wrong field.
func Load(folder string) (*Driver, error) {
	name := filepath.Join(folder, "driver.json")
	text, err := bounded.ReadFile(name, maxFile)
	if err != nil {
		return nil, fmt.Errorf("read the driver: %w", err)
	}
	d := &Driver{}
	if err := bounded.JSON(text, d); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	switch {
	case d.Program == "" || d.Program != filepath.Base(d.Program):
		return nil, fmt.Errorf("%s: program is %q, it must be the name of a file beside it", name, d.Program)
	case d.Control < 3 || d.Control > maxControl:
		return nil, fmt.Errorf("%s: control is %d, it must be from 3 to %d", name, d.Control, maxControl)
	case d.Warm == "":
		return nil, fmt.Errorf("%s: warm is missing, it must be code", name)
	case strings.Contains(strings.Join(d.Arguments, ""), "\x00"):
		return nil, fmt.Errorf("%s: arguments has a NUL byte in it", name)
	}
	if d.Program, err = filepath.Abs(filepath.Join(folder, d.Program)); err != nil {
		return nil, fmt.Errorf("find the driver's program: %w", err)
	}
	if info, err := os.Stat(d.Program); err != nil {
		return nil, fmt.Errorf("%s: program: %w", name, err)
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: program is %s, which is not a file", name, d.Program)
	}
	return d, nil
}

// StdinCode returns code that makes a file the interpreter's stdin.
func (d *Driver) StdinCode(path string) string {
	return strings.ReplaceAll(d.Stdin, "@path@", path)
}

// GrowCode returns code that adds a folder of programs.
func (d *Driver) GrowCode(path string) string {
	return strings.ReplaceAll(d.Grow, "@path@", path)
}

// VariableCode returns code that sets a variable to a value in JSON.
func (d *Driver) VariableCode(name string, value json.RawMessage) string {
	return strings.NewReplacer("@name@", name, "@json@", literal(string(value)), "@text@", literal(Text(value))).Replace(d.Variable)
}

// literal is the body of a string literal of a text.
func literal(text string) string {
	quoted, _ := json.Marshal(text) // a string has no error
	body := string(quoted[1 : len(quoted)-1])
	return strings.NewReplacer("'", `\u0027`, "#", `\u0023`, "$", `\u0024`).Replace(body)
}

// Text is a JSON value as a text: that of a string is the string itself.
func Text(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil && len(value) > 0 && value[0] == '"' {
		return text
	}
	return string(value)
}

// MaxLine is the length of the longest line of a control channel, in bytes,
// with its newline.
const MaxLine = 64

// Call is what the agent writes to a control channel.
type Call struct {
	Nonce uint64
	// Last says that the interpreter ends with this code, as at the end of a program.
	// Its exit status is the answer.
	Last bool
	// Late says that the previous call was interrupted, and the signal may still arrive.
	Late bool
	// Number counts the calls of a sandbox from 1; a warm-up has number 0.
	Number uint64
	// Size is the code's, in bytes.
	Size int
}

// Line returns the call as it is written, with its newline.
func (c Call) Line() string {
	verb := "call"
	switch {
	case c.Last:
		verb = "last"
	case c.Late:
		verb = "late"
	}
	return fmt.Sprintf("%s %016x %d %d\n", verb, c.Nonce, c.Number, c.Size)
}

// Kind is the kind of a [Reply].
type Kind int

// Kinds of replies.
const (
	Ready Kind = iota // the driver is up
	Done              // the call has ended
	Leave             // the interpreter is about to end; its state is in the state file
	Stop              // the code has called exit, and only an interrupt of the interpreter ends it
	Soon              // output waits in the interpreter, which wants a SIGURG after SoonTime
)

// SoonTime is how long output may wait in an interpreter.
const SoonTime = 20 * time.Millisecond

// Reply is a line that a driver wrote.
type Reply struct {
	Kind   Kind
	Nonce  uint64
	Status int // of Done, 0 to 255
}

// ParseReply parses a line without its newline. The error quotes the line, unless it is
// too long.
func ParseReply(line string) (Reply, error) {
	if len(line) >= MaxLine {
		return Reply{}, fmt.Errorf("driver's line is longer than %d bytes", MaxLine)
	}
	fields := strings.Split(line, " ")
	kind, known := map[string]struct {
		Kind
		words int
	}{"ready": {Ready, 1}, "done": {Done, 3}, "leave": {Leave, 2}, "stop": {Stop, 2}, "soon": {Soon, 2}}[fields[0]]
	r := Reply{Kind: kind.Kind}
	valid := known && len(fields) == kind.words
	var err error
	if valid && kind.words > 1 {
		r.Nonce, err = strconv.ParseUint(fields[1], 16, 64)
		valid = err == nil && len(fields[1]) == 16
	}
	if valid && kind.words > 2 {
		var status uint64
		status, err = strconv.ParseUint(fields[2], 10, 8)
		r.Status, valid = int(status), err == nil
	}
	if !valid {
		return Reply{}, fmt.Errorf("driver wrote %q", line)
	}
	return r, nil
}

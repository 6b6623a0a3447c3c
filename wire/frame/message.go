package frame

import "encoding/json"

// Types of a [Request].
const (
	Configure = "configure" // Env, OutputBytes; before the first execute
	Execute   = "execute"   // ID, Code, TimeoutMS, GraceMS, Keep, Shared, Given
	Interrupt = "interrupt" // ID of a running or waiting execute
	Read      = "read"      // ID, Path, Offset, Length: a file under /workspace
	Save      = "save"      // ID, Full, Changes, Next: a part of a copy of /workspace
	Restore   = "restore"   // ID, Contents: a part of such a copy to write, before the first execute
	Ping      = "ping"      // ID; answered when the interpreter is loaded
	Grow      = "grow"      // ID, Env: the sandbox has got the store of a larger environment, with these variables
	Reseed    = "reseed"    // ID: the sandbox is a copy of another; before its own first execute
	Called    = "called"    // ID, Ask, Contents, Length, More: a part of the answer to call
)

// Types of a [Request] to an agent that connects one program to the user, and
// answers with the bytes and the exit status of the program. The first request
// is Open, or Execute with the code in Contents; Interrupt has no ID.
const (
	Open   = "open"   // Terminal, Env: a shell on a terminal of its own
	Resize = "resize" // Terminal: its new size
	Input  = "input"  // Contents: bytes of input; empty at its end
)

// An agent that runs calls takes them too, as streams beside the calls: Open has an ID, and
// Terminal, Port or Program with Code, and the others have that ID. Each direction begins with
// [Window].
const (
	Credit = "credit" // ID, Length: as many bytes more may come
	Signal = "signal" // ID, Length: the number of a signal for the program
	Close  = "close"  // ID; ends the stream at once
	// Look asks for the files of the workspace that have changed since the last Look: ID.
	// Examine asks for the ports on which code listens, and for the memory in use: ID.
	Look    = "look"
	Examine = "examine"
)

// Bounds of streams: how many a sandbox has at once, how many bytes may be on their way in each
// direction, and how many a frame has at most.
const (
	MaxStreams = 48
	Window     = 128 << 10
	StreamPart = 16 << 10
)

// Types of a [Reply].
const (
	Ready    = "ready"    // Protocol; once, before anything else
	Output   = "output"   // ID, Stream, Data; any number before the result
	Result   = "result"   // ID and the facts of a call; exactly one for each execute
	Contents = "contents" // ID, Contents, Size; the answer to read
	Part     = "part"     // ID, Contents; the answer to save. An empty part ends a copy, or says that nothing has changed
	Restored = "restored" // ID; the answer to restore
	Pong     = "pong"     // ID, Size: the memory in use, if there are limits
	Reseeded = "reseeded" // ID; the answer to reseed
	Grown    = "grown"    // ID; the answer to grow
	// Call asks the server something for the code of a running execute: ID of that, Ask, and
	// parts of a question in Contents, of which all but the last have More. After that an
	// empty frame of this Ask with More wants the next part of the answer, and one without
	// More gives the answer up.
	Call  = "call"
	Error = "error" // ID if it answers a request; Message
	// Of a stream. Bytes without Contents are the end of a connection's input.
	Opened = "opened" // ID
	Bytes  = "bytes"  // ID, Contents
	Closed = "closed" // ID, ExitCode, Message: why it was not opened; the last frame
	// Looked answers look: ID, Files, Size: the number of all. Examined answers examine: ID,
	// Ports, Size.
	Looked   = "looked"
	Examined = "examined"
)

// Outcomes of a [Result].
const (
	OutcomeOK        = "ok"        // the code ended by itself; ExitCode says how
	OutcomeTimeout   = "timeout"   // TimeoutMS passed
	OutcomeCancelled = "cancelled" // an interrupt came
	OutcomeMemory    = "memory"    // the memory limit was crossed
	OutcomeLimit     = "limit"     // another limit was crossed; Limit says which
	OutcomeCrashed   = "crashed"   // the interpreter died
)

// States of a session in a [Result]. The result of a one-shot call has no state.
const (
	StateKept = "kept"
	// StateLost says that the interpreter was replaced in this call or since the last
	// one. Files are as they were.
	StateLost = "lost"
)

// Streams of an [Output].
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Request is a message to the agent. Its reader ignores unknown fields, as that of a
// [Reply] does.
type Request struct {
	Type string `json:"type"`
	// ID is chosen by the sender and repeated in the replies. Executes run one at a time,
	// in order of arrival.
	ID uint64 `json:"id,omitempty"`

	Env map[string]string `json:"env,omitempty"`
	// OutputBytes bounds the output of each stream of a call: half of it is for the beginning
	// of the stream, and half for the end. 0 leaves the bound as it is.
	OutputBytes int64 `json:"output_bytes,omitempty"`

	Code string `json:"code,omitempty"`
	// TimeoutMS is the time the code may run, in milliseconds; 0 is no limit.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// GraceMS is the time between the interrupt that a timeout or a
	// cancellation sends and the kill, in milliseconds.
	GraceMS int64 `json:"grace_ms,omitempty"`
	// Keep says that the call belongs to a session: the interpreter's state
	// outlives it. Without Keep, the interpreter ends with the call.
	Keep bool `json:"keep,omitempty"`
	// Shared says that other sandboxes write to the workspace too. Files that exist when
	// the call begins do not count as the call's.
	Shared bool `json:"shared,omitempty"`
	// Given is what the call gets beside its code, or nil.
	Given *Given `json:"given,omitempty"`

	// Full asks for a copy even if nothing has changed since the last one, and Changes says that a
	// copy may have just what has. Next asks for the next part of the copy that was begun; without
	// it, another one begins. The parts are an archive of package filetree. An empty part ends it.
	Full    bool `json:"full,omitempty"`
	Changes bool `json:"changes,omitempty"`
	Next    bool `json:"next,omitempty"`

	Path   string `json:"path,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Length int64  `json:"length,omitempty"`

	Contents []byte    `json:"contents,omitempty"`
	Terminal *Terminal `json:"terminal,omitempty"`
	// Port is a port of the sandbox's own loopback.
	Port uint16 `json:"port,omitempty"`
	// Program has a shell run Code, or the interpreter run Contents, without a terminal.
	Program *Program `json:"program,omitempty"`

	// Ask numbers the question that a call or called is about, and More says that another
	// part follows this one. Length is that of the whole answer, in bytes.
	Ask  uint64 `json:"ask,omitempty"`
	More bool   `json:"more,omitempty"`
}

// Given is what a program gives with a call. The runtime bounds it.
type Given struct {
	Stdin []byte `json:"stdin,omitempty"`
	// Variables are JSON by name. An interpreter with a driver has them as variables of its
	// language, another program as variables of its environment.
	Variables map[string]json.RawMessage `json:"variables,omitempty"`
	// Files are contents by name, relative to the workspace, in which they are written before
	// the code runs.
	Files map[string][]byte `json:"files,omitempty"`
}

// Terminal describes the user's terminal to a program on one of its own.
type Terminal struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
	// Term is its type, as the variable TERM has it.
	Term string `json:"term,omitempty"`
	// Interpreter asks for the environment's interpreter in place of a shell.
	Interpreter bool `json:"interpreter,omitempty"`
}

// Program describes how a shell begins: in the working directory, and with the variables and
// functions, that the last such shell of the sandbox left. Dir, if it is not empty, is another
// directory, and Start the directory of the first shell.
type Program struct {
	// Interpreter asks for the environment's interpreter in place of a shell: a new one, which
	// runs the code as a call without a session does.
	Interpreter bool `json:"interpreter,omitempty"`

	Dir   string `json:"dir,omitempty"`
	Start string `json:"start,omitempty"`
}

// long is the field that may be long.
func (r *Request) long() (string, *string) { return "code", &r.Code }

// Reply is a message to the runtime.
type Reply struct {
	Type string `json:"type"`
	ID   uint64 `json:"id,omitempty"`

	Protocol int `json:"protocol,omitempty"`

	Stream string `json:"stream,omitempty"`
	Data   string `json:"data,omitempty"`
	// Cleared says that the code took back what it wrote to this stream before Data.
	Cleared bool `json:"cleared,omitempty"`
	// Skipped is the number of bytes of this stream that were left out just
	// before Data.
	Skipped int64 `json:"skipped,omitempty"`
	// Sample marks Data as the newest line of output that is otherwise held
	// back. It is shown as progress and is no part of the answer.
	Sample bool `json:"sample,omitempty"`

	// ExitCode is the code's exit status, 128 + N if signal N ended it.
	ExitCode int    `json:"exit_code,omitempty"`
	Outcome  string `json:"outcome,omitempty"`
	State    string `json:"state,omitempty"`
	// Limit was crossed in this call or, if the outcome is ok, between the last call and
	// this one. In that case the session has lost its state.
	Limit *Limit `json:"limit,omitempty"`
	// Truncated has the streams that were not sent completely.
	Truncated []Truncation `json:"truncated,omitempty"`
	// Files are what the call made or changed under /workspace/outputs and, if it has no session,
	// directly in /workspace and in /tmp.
	Files []File `json:"files,omitempty"`

	Contents []byte `json:"contents,omitempty"`
	Ask      uint64 `json:"ask,omitempty"`
	More     bool   `json:"more,omitempty"`
	// Ports are those on which a process listens at its loopback.
	Ports []uint16 `json:"ports,omitempty"`

	// Size is the whole file's, or the memory's, in bytes.
	Size int64 `json:"size,omitempty"`

	Message string `json:"message,omitempty"`
	// Missing says that the error is about a file that does not exist.
	Missing bool `json:"missing,omitempty"`
}

// long is the field that may be long.
func (r *Reply) long() (string, *string) { return "data", &r.Data }

// Limit is a limit that the sandbox has crossed. All its processes but the agent were killed.
type Limit struct {
	Name  string `json:"name"`  // [Memory], [PIDs], [FileLocks], [EpollWatches] or [Terminals]
	Value int64  `json:"value"` // MiB for [Memory], otherwise a number
	Used  int64  `json:"used"`  // at that moment, in the same unit, rounded up
}

// Truncation describes a stream that was not sent completely.
type Truncation struct {
	Stream string `json:"stream"`
	Total  int64  `json:"total"`          // bytes that the code wrote
	Path   string `json:"path,omitempty"` // the file with all of the output, or empty
	// Stored is the number of bytes in the file at Path: Total, unless the
	// workspace was too full for all of them.
	Stored int64 `json:"stored,omitempty"`
}

// File is a file under /workspace.
type File struct {
	Path string `json:"path"` // absolute
	Size int64  `json:"size"` // bytes
	// Linked says that the file has a name elsewhere in the workspace too, or is not in outputs.
	Linked bool `json:"linked,omitempty"`
}

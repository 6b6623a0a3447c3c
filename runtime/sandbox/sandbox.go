// Package sandbox defines the interfaces between the users of started sandboxes and their starters.
// It does not know how a sandbox is made: package framed starts the programs that Nix built,
// package sandboxtest simulates machines for tests, and a decorator such as [Limit] or package pool
// stands in front of either.
package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Starter starts sandboxes. Its methods may be called at the same time.
type Starter interface {
	// Start starts a sandbox and returns when code can run in it. The caller owns the sandbox and
	// ends it with Kill. The error is ctx's, [ErrClosed], or a [*DeadError]; after an error the
	// sandbox does not exist.
	Start(ctx context.Context, spec Spec) (Sandbox, error)
}

// Workspaces makes workspaces that several sandboxes have.
type Workspaces interface {
	// Workspace makes a workspace of the size in this spec. The caller owns it and ends it with
	// Close. It is nil if a sandbox of this spec cannot share one, as virtual machines cannot. The
	// errors are those of [Starter].
	Workspace(ctx context.Context, spec Spec) (Workspace, error)
}

// Workspace is a /workspace for sandboxes of the starter that made it, given in their [Spec]. Its
// files exist as long as it or any of these sandboxes does.
type Workspace interface {
	// Close ends it and returns at once: no further sandbox can have it.
	Close()
	// Done is closed when no further sandbox can have it.
	Done() <-chan struct{}
}

// Sandbox is a started sandbox. Its methods may be called at the same time. A sandbox may
// also be [Saver], [Suspender], [Layered] or [Pooled].
type Sandbox interface {
	// Run runs code. If ctx ends before the code does, the code is interrupted and the result
	// says so; if ctx has ended already, its error is returned. If the sandbox ends, the error is a
	// [*DeadError], and the result has the code's output so far.
	Run(ctx context.Context, request Request) (Result, error)
	// CopyFile writes a file under /workspace to a writer, in parts, and returns its size
	// in bytes. The error is a [*TooLargeError] if it has more than limit bytes, and a
	// [*MissingFileError] if there is no such file.
	CopyFile(ctx context.Context, to io.Writer, path string, limit int64) (int64, error)
	// Kill ends everything in the sandbox and returns at once.
	Kill()
	// Done is closed when the sandbox can no longer be asked anything.
	Done() <-chan struct{}
	// OnEnd calls f once, in a goroutine of its own, when all processes of the sandbox are gone,
	// even if they are gone already.
	OnEnd(f func())
}

// Extent is what an archive of a workspace has.
type Extent int

const (
	// Changes is what has changed since the last archive that was read to its end, or everything; it is
	// empty without a change.
	Changes Extent = iota
	// IfChanged is everything, and empty without a change.
	IfChanged
	// All is everything.
	All
)

// Saver is a sandbox that can copy its workspace out and in.
type Saver interface {
	// SaveFiles returns a reader of an archive of /workspace, as package filetree defines
	// it. The bytes come from the sandbox and are not checked.
	// No call may run until the reader has returned an error.
	SaveFiles(ctx context.Context, extent Extent) io.Reader
	// RestoreFiles writes the files of such an archive, which may be empty, before the
	// first call. The workspace then counts as saved. After an error it is incomplete, and
	// the sandbox must not be used.
	RestoreFiles(ctx context.Context, archive io.Reader) error
}

// Ask answers a question of the code that runs in a sandbox. It is called by several goroutines at a time, and ctx
// ends with the run.
type Ask func(ctx context.Context, box Sandbox, question []byte) (answer []byte)

// Grower is a sandbox that can get the packages of a larger environment.
type Grower interface {
	// Add adds the packages of an addition to what programs find by their paths, by the addition's program grow. Calls
	// may run meanwhile. After an error the sandbox is as it was.
	Add(ctx context.Context, grow string) error
	// Grow adds what another environment has, whose program for sessions is exec. The interpreter goes
	// on. No call may run meanwhile. After an error the sandbox is as it was, or has more in its store than
	// its interpreter knows of.
	Grow(ctx context.Context, exec string) error
}

// Suspender is a sandbox that can be written to disk.
type Suspender interface {
	// Suspend writes the state of the whole sandbox to a folder, which must not exist, and
	// returns its size on disk in bytes. The folder appears complete or not at all. With
	// keep the sandbox goes on; otherwise it ends. No call may run meanwhile. After an
	// error the sandbox goes on, unless that is a [*DeadError]. The sandbox must be one of a
	// [Spec] with Control.
	Suspend(ctx context.Context, folder string, keep bool) (bytes int64, err error)
}

// Layered is a sandbox that shows the project through an overlay, or a [Workspace] whose
// sandboxes have one overlay.
type Layered interface {
	// Upper returns the upper layer of the overlay, which the caller closes. It is readable
	// even after the sandbox has ended. Upper returns nil if the artifact does not support it;
	// for a sandbox also if [Spec.Upper] was not set, and on the second call.
	Upper() *os.File
	// Refresh has the sandboxes see what others have changed in the project itself since they saw it.
	Refresh()
}

// Pooled is a sandbox that can wait for its first call.
type Pooled interface {
	// Give makes the sandbox a principal's, before its first call. Its [Spec] had no
	// Principal. After an error, the caller ends the sandbox.
	Give(principal string) error
	// Idle reports whether the sandbox lives and has done nothing unasked, as far as can be
	// told without asking it.
	Idle() bool
	// Memory is how many bytes the sandbox used when its interpreter had loaded, or 0 if
	// that was not measured.
	Memory() int64
}

// ReadFile returns a file under /workspace of a sandbox. The errors are those of
// [Sandbox.CopyFile].
func ReadFile(ctx context.Context, box Sandbox, path string, limit int64) ([]byte, error) {
	var data bytes.Buffer
	if _, err := box.CopyFile(ctx, &data, path, limit); err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

// Spec is a sandbox to start.
type Spec struct {
	// Name is the environment's.
	Name string
	// Principal owns the sandbox. It is "" for a waiting sandbox, and if there is only one
	// principal. It changes nothing that code could see.
	Principal string
	// Exec is the program of the artifact that the starter knows how to use.
	Exec string
	// Base is the name of an environment with fewer packages, and BaseExec its program: a sandbox of it that waits
	// may become one of this environment. Both may be "".
	Base, BaseExec string
	// OutputBytes bounds a call's answer, both streams together.
	OutputBytes int64
	Limits      Limits
	// Variables are for the code; they never appear on a command line or in
	// the environment of a process outside the sandbox.
	Variables map[string]string
	Host      HostFolders
	// Network says that the artifact's program has a proxy for the environment's hosts, which
	// reports its work.
	Network bool
	// Asks says that the proxy asks about some hosts.
	Asks bool
	// Secrets name variables of this process's environment that the artifact's
	// program reads, for secrets or for itself. They never reach the code.
	Secrets []string
	// Workspace is shared with other sandboxes, or nil if the sandbox has its own.
	Workspace Workspace
	// Upper asks for the upper layer of the project's overlay, if it is one.
	Upper bool
	// Reports says that the artifact's program reports how it isolates the sandbox.
	Reports bool
	// Control says that the artifact's program can be asked to suspend the sandbox.
	Control bool
	// From is a folder with the state of a suspended sandbox, which goes on; empty for a
	// new one. The folder may be deleted when the sandbox has started.
	From string
	// Overhead is the memory and number of tasks of the artifact's program, beside the code's
	// limits.
	Overhead Limits
	// Warm asks the starter to return only when the interpreter has loaded.
	Warm bool
}

// Limits bound a sandbox; 0 is no limit.
type Limits struct {
	Memory int64   // bytes
	Tasks  int     // processes and threads
	CPUs   float64 // processors
}

// HostFolders are the folders of the host that a sandbox shows; the zero value means no folder.
type HostFolders struct {
	Project Project
	// Inbox is a folder that can be read at the artifact's path for it, or "".
	Inbox string
}

// Project is a folder of the host that is shown at a path of the operator's choice; the zero value
// means no project.
type Project struct {
	Dir   string // on the host
	Mount string // in the sandbox
	Mode  string // readonly, overlay or write
}

// IsOverlay reports whether code may write to a layer over the project.
func (p Project) IsOverlay() bool { return p.Dir != "" && (p.Mode == "overlay" || p.Writes()) }

// Writes reports whether changes in that layer are written into the project too, by the server.
func (p Project) Writes() bool { return p.Mode == "write" }

// Environ returns the variables that tell an artifact's program about the folders.
func (f HostFolders) Environ() (variables []string) {
	if p := f.Project; p.Dir != "" {
		mode := p.Mode
		if p.Writes() {
			mode = "overlay" // for the sandbox
		}
		variables = []string{"PROJECT_DIR=" + p.Dir, "PROJECT_MOUNT=" + p.Mount, "PROJECT_MODE=" + mode}
	}
	if f.Inbox != "" {
		variables = append(variables, "NIX_SANDBOX_INBOX="+f.Inbox)
	}
	return variables
}

// foldersOfDevices names folders with specifications of devices, which launchers read.
const foldersOfDevices = "NIX_SANDBOX_CDI"

// Environ returns the named variables that this process has, and the variables that every launcher
// may read. It never returns nil, because a program would then inherit all.
func Environ(names []string) []string {
	variables := []string{}
	for _, name := range append([]string{foldersOfDevices}, names...) {
		if value, found := os.LookupEnv(name); found {
			variables = append(variables, name+"="+value)
		}
	}
	return variables
}

// Same reports whether both specs start the same sandbox, warm or not. No two sandboxes
// with a workspace are the same.
func (s Spec) Same(other Spec) bool {
	s.Principal, s.Warm = other.Principal, other.Warm
	return s.Workspace == nil && other.Workspace == nil && reflect.DeepEqual(s, other)
}

// Request is code to run.
type Request struct {
	Code string
	// Given is what the code gets beside, or nil. It is not changed.
	Given   *frame.Given
	Timeout time.Duration
	// Grace is the time between interrupt and kill.
	Grace time.Duration
	// Keep says that the interpreter's state outlives the call.
	Keep bool
	// Shared says that other sandboxes write to the workspace between the calls of this one, so
	// that new files need not be this call's.
	Shared bool
	// Progress is told where the output is while the code runs. It may be nil.
	Progress *Progress
	// Ask answers what the code asks the server while it runs. It may be nil, which refuses.
	Ask Ask
	// Hold, if it is not nil, charges whoever made the call for the bytes of an answer that waits, until
	// release is called. After an error the code gets another answer.
	Hold func(bytes int64) (release func(), err error)
	// Host asks the user whether the code may connect to a host that the policy has asked about, and
	// returns why not, or "". It is called by several goroutines at a time. Nil refuses.
	Host func(ctx context.Context, name string, port int) event.Reason
	// Clock stands still while the user is asked. It is nil if the user is never asked.
	Clock *Clock
}

// Result is the result of a request.
type Result struct {
	// Outcome is one of frame's outcomes, State one of its states or empty.
	Outcome  string
	State    string
	ExitCode int // 128 + N where signal N ended the code
	Duration time.Duration
	Stdout   Text
	Stderr   Text
	// Limit is the limit that was crossed, or nil.
	Limit *frame.Limit
	// Stored are the files with the complete output that the answer truncates.
	Stored []Stored
	// Files are the files that the code wrote under /workspace/outputs.
	Files []File
	// Network describes the code's network traffic, or is nil if there was none.
	Network *Network
	// EnforcedBy is the mechanism of the limits: [ByGroup] or [ByAgent].
	EnforcedBy string
	// Isolation says how the sandbox's instructions are executed, if that is known only at run
	// time: kvm or emulated; otherwise "".
	Isolation string
	// Start says how the sandbox began, if there is more than one way: cold, or copy for a copy of
	// a saved one; otherwise "".
	Start string
	// ProjectChanged says, in the first result that could, that the sandbox goes on from
	// an earlier state with the project as it was, and that the project is another now.
	ProjectChanged bool
}

// The mechanisms that enforce the limits of memory and processes.
const (
	ByGroup = "cgroup"       // a control group, and before it the agent's limit keeper
	ByAgent = "limit-keeper" // the agent's limit keeper alone
)

// Text is a bounded part of a stream: valid UTF-8, and Tail is empty unless
// Cut bytes are left out between it and Head.
type Text struct {
	Head string
	Tail string
	Cut  int64
}

// Len is the number of bytes that are there.
func (t Text) Len() int { return len(t.Head) + len(t.Tail) }

// Stored is a file with a stream's output from its beginning.
type Stored struct {
	Path  string
	Bytes int64
	// All says that all of the stream is in it.
	All bool
}

const (
	// WorkspaceFolder has the files that can be read, and outputs those that are meant for the user.
	WorkspaceFolder = "/workspace/"
	outputs         = WorkspaceFolder + "outputs/"
)

// Name is the path of a file as the user knows it.
func (f File) Name() string {
	return strings.TrimPrefix(strings.TrimPrefix(f.Path, outputs), WorkspaceFolder)
}

// Readable reports whether the file can be read, and not only named: it is in outputs, or directly in
// the workspace.
func (f File) Readable() bool {
	name, found := strings.CutPrefix(f.Path, WorkspaceFolder)
	return strings.HasPrefix(f.Path, outputs) || found && !strings.Contains(name, "/") && f.Path+"/" != outputs
}

// File is a file that code wrote.
type File struct {
	Path string // absolute and valid UTF-8; any other character may be in it
	Size int64  // bytes
	// Linked says that the file was written elsewhere than in outputs, and may have a name there too.
	Linked bool
	// Unshown says why an image is not in Content, or is "".
	Unshown Unshown
	// Content is the whole file if it was read, and Type its MIME type.
	Content []byte
	Type    string
	// Kept is the id of the file in package callfiles when the sandbox is gone, or "".
	Kept string
}

// Unshown is why an answer has an image as a file alone.
type Unshown string

// The reasons.
const (
	TooMany    Unshown = "many"   // other images are in its place
	TooLarge   Unshown = "large"  // it has too many bytes or pixels
	Unreadable Unshown = "broken" // it is not whole, or not what its name says
)

// ErrClosed reports a start after the starter's end.
var ErrClosed = errors.New("the server is ending")

// DeadError says why a sandbox ended, with its last log lines.
type DeadError struct {
	Reason string
	// Limit is the limit that made the kernel end it: frame.Memory, or [MemoryUsed]; otherwise "".
	Limit string
	// Log is the end of the sandbox's own log.
	Log string
}

// MemoryUsed is the limit for all of a principal's sandboxes together, by the name of its option.
const MemoryUsed = "memory_used_mb"

// LogSeparator stands between the lines of [DeadError.Log].
const LogSeparator = " | "

// maxLogInError bounds the part of a log that an error's text carries, in
// bytes: a sentence or two; more of it is in [DeadError.Log].
const maxLogInError = 400

func (e *DeadError) Error() string {
	if e.Log == "" {
		return e.Reason
	}
	return e.Reason + "; its log ends: " + LastBytes(e.Log, maxLogInError)
}

// WaitWithin waits for a group, at most for within.
func WaitWithin(group *sync.WaitGroup, within time.Duration) {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(within):
	}
}

// TooLargeError reports a file that is too large to be read at once.
type TooLargeError struct{ Size, Limit int64 } // bytes

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the file has %d bytes, more than the %d that can be read at once", e.Size, e.Limit)
}

// MissingFileError reports a file that a sandbox does not have. Problem is the sandbox's
// own sentence about it. It is an [fs.ErrNotExist].
type MissingFileError struct{ Problem string }

func (e *MissingFileError) Error() string        { return e.Problem }
func (e *MissingFileError) Is(target error) bool { return target == fs.ErrNotExist }

// LastBytes returns the end of a text: at most size bytes, from a rune on.
func LastBytes[T ~string | ~[]byte](text T, size int) T {
	if len(text) <= size {
		return text
	}
	text = text[len(text)-size:]
	for len(text) > 0 && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return text
}

// Package sandboxtest has a machine for tests: it starts sandboxes in this
// process, without a jail, an agent or a program. What passes with it depends
// on none of these.
//
// Its sandboxes run a small part of a shell's language: statements are lines,
// or have ; between them.
//
//	NAME=VALUE             kept until the sandbox ends
//	echo WORD...           $NAME and $((NUMBER+NUMBER)) are replaced; with >FILE
//	                       it writes a file under /workspace, with >&2 to stderr
//	cat FILE
//	seq NUMBER             writes as many lines
//	fill BYTES             writes as many letters; with >FILE to a file, whose content takes
//	                       no memory of its own
//	png FILE               writes an image of one pixel
//	sleep SECONDS          can be interrupted
//	fetch NAME             is refused by the network, where the sandbox has one
//	exit STATUS
//	crash                  ends the sandbox
//	:                      does nothing
//	# ...                  a comment
package sandboxtest

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Machine starts sandboxes. Its fields are set before its first start.
type Machine struct {
	// StartTime is how long a start takes.
	StartTime time.Duration
	// FailureRate is the part of the starts that fail, from 0 to 1; Rand
	// decides which.
	FailureRate float64
	Rand        *rand.Rand
	// Memory is what each sandbox says it uses, in bytes.
	Memory int64
	// Give is told of each sandbox that is given to a principal, which fails with its
	// error; it may be nil.
	Give func(principal string) error
	// Grows says that sandboxes can get packages.
	Grows bool
	// Alone is the environment that cannot share a workspace, if there is one.
	Alone string

	mu             sync.Mutex
	suspendFailure error
	closed         bool
	started        int
	running        int
	most           int
	live           map[*Sandbox]struct{}
	// workspaces are those of several sandboxes, ended ones too.
	workspaces []*Workspace
}

var (
	_ sandbox.Starter    = (*Machine)(nil)
	_ sandbox.Workspaces = (*Machine)(nil)
)

// Start implements [sandbox.Starter].
func (m *Machine) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	// The race detector of Go 1.26 may crash at a timer of a bubble that is due at once.
	if m.StartTime > 0 {
		select {
		case <-time.After(m.StartTime):
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, sandbox.ErrClosed
	}
	m.started++
	if m.FailureRate > 0 && (m.FailureRate >= 1 || m.Rand.Float64() < m.FailureRate) {
		return nil, &sandbox.DeadError{Reason: "the machine failed"}
	}
	ended, stop := context.WithCancel(context.Background())
	s := &Sandbox{Spec: spec, machine: m, ended: ended, stop: stop, done: make(chan struct{}), variables: map[string]string{}}
	if spec.Workspace != nil {
		s.workspace = spec.Workspace.(*Workspace)
		if isClosed(s.workspace.done) {
			stop()
			return nil, &sandbox.DeadError{Reason: "the workspace has ended"}
		}
	} else {
		s.workspace = newWorkspace()
	}
	maps.Copy(s.variables, spec.Variables)
	if err := s.restore(); err != nil {
		stop()
		return nil, err
	}
	if m.live == nil {
		m.live = map[*Sandbox]struct{}{}
	}
	m.live[s] = struct{}{}
	m.most = max(m.most, len(m.live))
	return s, nil
}

// Workspace implements [sandbox.Workspaces].
func (m *Machine) Workspace(_ context.Context, spec sandbox.Spec) (sandbox.Workspace, error) {
	if m.Alone != "" && spec.Name == m.Alone {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, sandbox.ErrClosed
	}
	w := newWorkspace()
	m.workspaces = append(m.workspaces, w)
	return w, nil
}

// Workspaces is how many workspaces of several sandboxes have not ended.
func (m *Machine) Workspaces() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(m.workspaces), func(w *Workspace) bool { return isClosed(w.done) }))
}

// Workspace is what lies under /workspace of one or several sandboxes.
type Workspace struct {
	done chan struct{}
	end  sync.Once

	mu    sync.Mutex
	files map[string][]byte // by path
	saved bool              // since the last write
}

var _ sandbox.Workspace = (*Workspace)(nil)

func newWorkspace() *Workspace {
	return &Workspace{done: make(chan struct{}), files: map[string][]byte{}, saved: true}
}

// Close implements [sandbox.Workspace].
func (w *Workspace) Close() { w.end.Do(func() { close(w.done) }) }

// Done implements [sandbox.Workspace].
func (w *Workspace) Done() <-chan struct{} { return w.done }

func (w *Workspace) read(name string) (data []byte, found bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	data, found = w.files[name]
	return data, found
}

func (w *Workspace) write(name string, data []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.files[name], w.saved = data, false
}

func isClosed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// SetFailureRate changes FailureRate for later starts.
func (m *Machine) SetFailureRate(rate float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.FailureRate = rate
}

// Close ends every sandbox.
func (m *Machine) Close(time.Duration) {
	m.mu.Lock()
	m.closed = true
	live := slices.Collect(maps.Keys(m.live))
	m.mu.Unlock()
	for _, s := range live {
		s.Kill()
	}
}

// Started is how many starts there were, also those that failed.
func (m *Machine) Started() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.started
}

// Running is how much code runs at this moment.
func (m *Machine) Running() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running
}

// count adds n to the code that runs.
func (m *Machine) count(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running += n
}

// Live returns the sandboxes that have not ended, and how many there were at
// most at a time.
func (m *Machine) Live() (live []*Sandbox, most int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.live)), m.most
}

// Sandbox is a sandbox of a [Machine].
type Sandbox struct {
	Spec    sandbox.Spec
	machine *Machine
	done    chan struct{}
	ended   context.Context // done when nothing is left
	stop    context.CancelFunc
	runs    sync.Mutex // locked by the code that runs

	mu        sync.Mutex
	reason    string // of its end
	variables map[string]string
	workspace *Workspace
}

var (
	_ sandbox.Saver     = (*Sandbox)(nil)
	_ sandbox.Suspender = (*Sandbox)(nil)
	_ sandbox.Pooled    = (*Sandbox)(nil)
)

// Kill implements [sandbox.Sandbox].
func (s *Sandbox) Kill() { s.end("it was ended") }

func (s *Sandbox) end(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason != "" {
		return
	}
	s.reason = reason
	close(s.done)
	s.machine.mu.Lock()
	delete(s.machine.live, s)
	s.machine.mu.Unlock()
	s.stop()
}

// Done implements [sandbox.Sandbox].
func (s *Sandbox) Done() <-chan struct{} { return s.done }

// OnEnd implements [sandbox.Sandbox].
func (s *Sandbox) OnEnd(f func()) { context.AfterFunc(s.ended, f) }

// Idle implements [sandbox.Pooled].
func (s *Sandbox) Idle() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// Give implements [sandbox.Pooled]. It fails where the machine's Give does.
func (s *Sandbox) Give(principal string) error {
	if s.machine.Give == nil {
		return nil
	}
	return s.machine.Give(principal)
}

// Memory implements [sandbox.Pooled].
func (s *Sandbox) Memory() int64 { return s.machine.Memory }

// CopyFile implements [sandbox.Sandbox].
func (s *Sandbox) CopyFile(_ context.Context, to io.Writer, name string, limit int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.workspace.read(name)
	switch {
	case s.reason != "":
		return 0, &sandbox.DeadError{Reason: s.reason}
	case !ok:
		return 0, &sandbox.MissingFileError{Problem: "there is no such file"}
	case int64(len(data)) > limit:
		return 0, &sandbox.TooLargeError{Size: int64(len(data)), Limit: limit}
	}
	n, err := to.Write(data)
	return int64(n), err
}

// WriteFile writes a file, by its path under /workspace.
func (s *Sandbox) WriteFile(name string, data []byte) {
	s.workspace.write(inWorkspace(name), data)
}

// Run implements [sandbox.Sandbox].
func (s *Sandbox) Run(ctx context.Context, request sandbox.Request) (sandbox.Result, error) {
	s.runs.Lock()
	defer s.runs.Unlock()
	if err := ctx.Err(); err != nil {
		return sandbox.Result{}, err
	}
	s.machine.count(1)
	defer s.machine.count(-1)
	began := time.Now()
	timeout := time.NewTimer(request.Timeout)
	defer timeout.Stop()
	r := &run{Sandbox: s, request: request, ctx: ctx, timeout: timeout.C, outcome: frame.OutcomeOK}
	for statement := range strings.FieldsFuncSeq(request.Code, func(c rune) bool { return c == '\n' || c == ';' }) {
		if !r.statement(strings.TrimSpace(statement)) {
			break
		}
	}
	result := sandbox.Result{
		Outcome: r.outcome, ExitCode: r.status, Duration: time.Since(began), EnforcedBy: "machine", Files: r.files,
		Stdout: cut(r.stdout.String(), int(s.Spec.OutputBytes)), Stderr: cut(r.stderr.String(), int(s.Spec.OutputBytes)),
	}
	if r.refused != nil {
		result.Network = &sandbox.Network{Refused: r.refused}
	}
	if request.Keep {
		result.State = frame.StateKept
	}
	if !s.Idle() {
		s.mu.Lock()
		defer s.mu.Unlock()
		return result, &sandbox.DeadError{Reason: s.reason}
	}
	return result, nil
}

// cut bounds a text as a sandbox's output is.
func cut(text string, limit int) sandbox.Text {
	if len(text) <= limit {
		return sandbox.Text{Head: text}
	}
	return sandbox.Text{Head: text[:limit/2], Tail: text[len(text)-limit/2:], Cut: int64(len(text) - limit/2*2)}
}

// run is one execution.
type run struct {
	*Sandbox
	request        sandbox.Request
	ctx            context.Context
	timeout        <-chan time.Time
	stdout, stderr strings.Builder
	files          []sandbox.File
	refused        []sandbox.Refusal
	status         int
	outcome        string
}

var (
	assignment = regexp.MustCompile(`^(\w+)=(.*)$`)
	sum        = regexp.MustCompile(`\$\(\((\d+)\+(\d+)\)\)`)
	variable   = regexp.MustCompile(`\$(\w+)`)
)

// statement runs a statement, and reports whether the next one is to run.
func (r *run) statement(text string) bool {
	if text == "" || text[0] == '#' {
		return true
	}
	text = sum.ReplaceAllStringFunc(text, func(match string) string {
		terms := sum.FindStringSubmatch(match)
		a, _ := strconv.Atoi(terms[1])
		b, _ := strconv.Atoi(terms[2])
		return strconv.Itoa(a + b)
	})
	r.mu.Lock()
	text = variable.ReplaceAllStringFunc(text, func(match string) string { return r.variables[match[1:]] })
	if set := assignment.FindStringSubmatch(text); set != nil {
		r.variables[set[1]] = set[2]
		r.mu.Unlock()
		return true
	}
	r.mu.Unlock()
	command, argument, _ := strings.Cut(text, " ")
	switch command {
	case "echo":
		words, file, toFile := strings.Cut(argument, ">")
		words = strings.TrimSpace(words)
		switch {
		case file == "&2":
			r.stderr.WriteString(words + "\n")
		case toFile:
			r.write(strings.TrimSpace(file), []byte(words+"\n"))
		default:
			r.print(words)
		}
	case "cat":
		data, _ := r.workspace.read(inWorkspace(argument))
		r.stdout.Write(data)
	case "seq":
		count, _ := strconv.Atoi(argument)
		for i := range count {
			r.print(strconv.Itoa(i + 1))
		}
	case "fill":
		size, file, toFile := strings.Cut(argument, ">")
		count, _ := strconv.Atoi(strings.TrimSpace(size))
		if data := letters()[:count:count]; toFile {
			r.write(strings.TrimSpace(file), data)
		} else {
			r.stdout.Write(data)
		}
	case "png":
		var data bytes.Buffer
		_ = png.Encode(&data, image.NewGray(image.Rect(0, 0, 1, 1))) // a buffer takes everything
		r.write(argument, data.Bytes())
	case "sleep":
		seconds, _ := strconv.ParseFloat(argument, 64)
		return r.sleep(time.Duration(seconds * float64(time.Second)))
	case "fetch":
		fmt.Fprintf(&r.stderr, "curl: (6) Could not resolve host: %s\n", argument)
		if r.status = 6; r.Spec.Network {
			r.refused = append(r.refused, sandbox.Refusal{Name: argument, Reason: event.ByName, Option: event.OptionDomains, Value: argument, Count: 1})
		}
	case "exit":
		r.status, _ = strconv.Atoi(argument)
		return false
	case ":":
	case "crash":
		r.end("the machine crashed")
		return false
	default:
		fmt.Fprintf(&r.stderr, "bash: line 1: %s: command not found\n", command)
		r.status = 127
	}
	return true
}

func (r *run) print(line string) {
	r.stdout.WriteString(line + "\n")
	if line != "" {
		r.request.Progress.Say(line)
	}
}

// letters returns 16 MiB that do not become much smaller by compression.
var letters = sync.OnceValue(func() []byte {
	source, data := rand.NewPCG(1, 1), make([]byte, 16<<20)
	for i := range data {
		data[i] = 'A' + byte(source.Uint64()%26)
	}
	return data
})

func inWorkspace(name string) string { return path.Join("/workspace", name) }

func (r *run) write(name string, data []byte) {
	r.WriteFile(name, data)
	if name = inWorkspace(name); strings.HasPrefix(name, "/workspace/outputs/") {
		r.files = append(r.files, sandbox.File{Path: name, Size: int64(len(data))})
	}
}

func (r *run) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.ctx.Done():
		r.outcome, r.status = frame.OutcomeCancelled, 130
	case <-r.timeout:
		r.outcome, r.status = frame.OutcomeTimeout, 130
	case <-r.done:
	}
	return false
}

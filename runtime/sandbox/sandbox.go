package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
)

const (
	// backstop is what the agent gets beyond a call's time limit and grace to
	// answer; then its sandbox is killed.
	backstop = time.Second
	// replyWithin is what the agent may take to answer a question about files.
	replyWithin = 5 * time.Second
	// ReadChunk is what one [Sandbox.Read] asks for at most, in bytes.
	ReadChunk = 256 << 10
	// maxFiles is how many files of a call or folder are looked at.
	maxFiles = 1000
	// readAhead is what is read of a sandbox's stream at once, in bytes.
	readAhead = 8 << 10
	// maxPending bounds the questions that wait for an answer.
	maxPending = 64
)

// shownLog is what of a log an error's text carries, in bytes: a sentence or
// two; the whole tail is in [DeadError.Log].
const shownLog = 400

// Names of the limits that can be crossed, as the metadata has them.
const (
	Memory = "memory_mb"
	PIDs   = "pids"
)

// limits are the names that an agent may give for what stopped code.
var limits = []string{Memory, PIDs, frame.FileLocks, frame.Terminals}

// maxUsed bounds what an agent may say was used of a limit.
const maxUsed = 1 << 40

// DeadError says why a sandbox ended and what it logged last.
type DeadError struct {
	Reason string
	// Limit is the one for which the kernel ended it; empty otherwise.
	Limit string
	// Log is the tail of the sandbox's standard error.
	Log string
}

func (e *DeadError) Error() string {
	if e.Log == "" {
		return e.Reason
	}
	return e.Reason + "; its log ends: " + end(e.Log, shownLog)
}

// end returns the last bytes of a text, at most size and from a rune on.
func end(text string, size int) string {
	if len(text) <= size {
		return text
	}
	text = text[len(text)-size:]
	for len(text) > 0 && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return text
}

// Call is code to run.
type Call struct {
	Code    string
	Timeout time.Duration
	// Grace is the time between interrupt and kill.
	Grace time.Duration
	// Keep says that the interpreter's state outlives the call.
	Keep bool
	// Output collects what the code writes.
	Output *Output
}

// Result is how a call ended.
type Result struct {
	ExitCode int
	Duration time.Duration
	// Outcome is one of frame's outcomes, State one of its states or empty.
	Outcome string
	State   string
	// Limit is the one that was crossed, or nil; State says what it cost.
	Limit *frame.Limit
	// Stored are the files that hold the output of which something was cut.
	Stored []Stored
	// Files are those that the call wrote under /workspace/outputs.
	Files []frame.File
}

// Stored is a file that holds a stream's output from its beginning.
type Stored struct {
	Path  string
	Bytes int64
	// All says that it holds all of the stream.
	All bool
}

// Sandbox is a started sandbox. Its methods may be called at the same time.
type Sandbox struct {
	log    *slog.Logger
	cmd    *exec.Cmd
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	frames *frame.Writer
	group  *cgroup.Group
	tail   tail
	output int64 // bytes that a call may send of each stream
	// enforcer is what holds it to its limits.
	enforcer string
	memory   int64 // bytes in use when its interpreter had loaded

	ready  chan struct{} // closed when the agent said ready
	dead   chan struct{} // closed when nothing can be asked any more
	reaped chan struct{} // closed when nothing is left

	mu      sync.Mutex
	last    uint64
	pending map[uint64]*request
	reason  string // of death; empty while nothing is wrong
	limit   string // that was the reason, if one was
	killed  bool
	waiting bool // the process is being waited for: its id is no longer ours
	over    bool // nothing is left
	ends    []func()
}

// request is a question to the agent that has no answer yet.
type request struct {
	// want is the type of the answer.
	want   string
	answer chan frame.Reply
	output *Output
	// frames and bytes are what may still come before the answer.
	frames int64
	bytes  int64
}

func newSandbox(log *slog.Logger, cmd *exec.Cmd, stdin, stdout, stderr *os.File, output int64) *Sandbox {
	return &Sandbox{
		log: log, cmd: cmd, stdin: stdin, stdout: stdout, stderr: stderr,
		frames:  frame.NewWriter(stdin),
		output:  output,
		ready:   make(chan struct{}),
		dead:    make(chan struct{}),
		reaped:  make(chan struct{}),
		pending: map[uint64]*request{},
	}
}

// own reads the sandbox's streams until they end, and then ends the rest.
func (s *Sandbox) own() {
	var logged sync.WaitGroup
	logged.Go(func() {
		if !s.tail.follow(s.stderr, s.log) {
			s.fail("it logged more than %d MiB", maxLog>>20)
		}
	})

	err := s.read(s.stdout)
	s.mu.Lock()
	if s.reason == "" {
		s.reason = err.Error()
	}
	s.mu.Unlock()
	s.Kill()
	close(s.dead)

	// A process that waits to be reaped keeps its id, so that no kill of ours
	// can meet another one's; from here on there are none.
	s.mu.Lock()
	s.waiting = true
	s.mu.Unlock()
	state := s.cmd.Wait()
	s.outOfMemory()
	// What was logged is in the pipe by now; a process that still holds the
	// other end is not waited for.
	s.stderr.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	logged.Wait()
	s.stdin.Close()
	s.stdout.Close()
	s.stderr.Close()
	s.log.Debug("sandbox ended", "pid", s.cmd.Process.Pid, "reason", s.reason, "status", fmt.Sprint(state))
	close(s.reaped)
}

// outOfMemory finds out whether the kernel ended the sandbox for its memory.
func (s *Sandbox) outOfMemory() {
	events, err := s.group.Events()
	if err != nil {
		s.log.Warn("it is not known whether the sandbox ran out of memory", "error", err)
		return
	}
	if events.Killed == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason, s.limit = "it used more memory than its limit allows", Memory
}

// Enforcer says what holds the sandbox to its limits: [ByGroup] or [ByWatch].
func (s *Sandbox) Enforcer() string { return s.enforcer }

// read dispatches frames until the stream ends or breaks a rule.
func (s *Sandbox) read(stream io.Reader) error {
	// Output and result come in one write, and are taken by one read.
	frames := frame.NewReader(bufio.NewReaderSize(stream, readAhead))
	// The largest honest frames are a read's answer, in base64, and all of a
	// stream's output, of which JSON may write a byte as six.
	frames.Limit(2*ReadChunk + 6*s.output + 64<<10)
	var hello frame.Reply
	if err := frames.Read(&hello); err != nil {
		return ended(err)
	}
	if hello.Type != frame.Ready || hello.Protocol != frame.Protocol {
		return fmt.Errorf("its first frame is %.20q with protocol %d, not ready with protocol %d", hello.Type, hello.Protocol, frame.Protocol)
	}
	close(s.ready)
	for {
		var reply frame.Reply
		if err := frames.Read(&reply); err != nil {
			return ended(err)
		}
		if err := s.dispatch(reply); err != nil {
			return err
		}
	}
}

// ended words the end of a stream.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the agent ended")
	}
	return fmt.Errorf("the agent's stream broke: %w", err)
}

// dispatch hands a reply to the request that it answers; the error is a rule
// that the reply breaks.
func (s *Sandbox) dispatch(reply frame.Reply) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.killed {
		// What an agent says of its own end is no answer to a call.
		return errors.New("it was ended")
	}
	req := s.pending[reply.ID]
	if req == nil {
		if reply.Type == frame.Error && reply.ID == 0 {
			return fmt.Errorf("the agent failed: %.200q", reply.Message)
		}
		return fmt.Errorf("the agent sent %.20q for a request that nobody made", reply.Type)
	}
	req.frames--
	req.bytes -= int64(len(reply.Data))
	if req.frames < 0 || req.bytes < 0 {
		return errors.New("the agent sent more than it may")
	}
	switch {
	case reply.Type == frame.Output && req.output != nil:
		return req.output.add(reply)
	case reply.Type == req.want, reply.Type == frame.Error:
		delete(s.pending, reply.ID)
		req.answer <- reply // has room for the one answer
		return nil
	default:
		return fmt.Errorf("the agent answered with %.20q instead of %s", reply.Type, req.want)
	}
}

// expect makes room for the answer to a request that is about to be sent with
// the id that it returns.
func (s *Sandbox) expect(req *request) (uint64, error) {
	req.answer = make(chan frame.Reply, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) >= maxPending {
		return 0, fmt.Errorf("%d requests to one sandbox wait already", maxPending)
	}
	s.last++
	s.pending[s.last] = req
	return s.last, nil
}

// ask sends a request. What comes of it arrives at the request's channel, if
// the sandbox lives.
func (s *Sandbox) ask(message frame.Request, req *request, within time.Duration) (uint64, error) {
	id, err := s.expect(req)
	if err != nil {
		return 0, err
	}
	message.ID = id
	// An agent that does not read is as good as dead once this has passed.
	s.stdin.SetWriteDeadline(time.Now().Add(within))
	if err := s.frames.Write(message); err != nil {
		s.mu.Lock()
		delete(s.pending, message.ID)
		s.mu.Unlock()
		if errors.Is(err, frame.ErrTooLarge) {
			return 0, err
		}
		s.fail("it does not take requests: %v", err)
		return 0, s.gone()
	}
	return message.ID, nil
}

// Execute runs code. When ctx ends before the code does, the code is
// interrupted and the result says so. The error is a [*DeadError] where the
// sandbox ended.
func (s *Sandbox) Execute(ctx context.Context, call Call) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	limit := call.Timeout + call.Grace + backstop
	samples := int64(limit/time.Second) * 4
	req := &request{
		want:   frame.Result,
		output: call.Output,
		// An honest agent sends each stream's bytes once, at worst one by one
		// and each as three where they are not UTF-8, and a sample a second.
		frames: 2*s.output + samples + 1000,
		bytes:  2*3*s.output + samples*sampleBytes + 64<<10,
	}
	began := time.Now()
	id, err := s.ask(frame.Request{
		Type:      frame.Execute,
		Code:      call.Code,
		TimeoutMS: call.Timeout.Milliseconds(),
		GraceMS:   call.Grace.Milliseconds(),
		Keep:      call.Keep,
	}, req, limit)
	if err != nil {
		return Result{}, err
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	cancelled := ctx.Done()
	for {
		select {
		case reply := <-req.answer:
			return s.result(reply, time.Since(began))
		case <-s.dead:
			// The answer may have come just before the end.
			select {
			case reply := <-req.answer:
				return s.result(reply, time.Since(began))
			default:
				return Result{}, s.gone()
			}
		case <-timer.C:
			s.fail("the agent did not end the call at its time limit")
			return Result{}, s.gone()
		case <-cancelled:
			cancelled = nil
			timer.Reset(call.Grace + backstop)
			s.stdin.SetWriteDeadline(time.Now().Add(backstop))
			if err := s.frames.Write(frame.Request{Type: frame.Interrupt, ID: id}); err != nil {
				s.fail("it does not take interrupts: %v", err)
			}
		}
	}
}

// result checks what the agent says of a call.
func (s *Sandbox) result(reply frame.Reply, took time.Duration) (Result, error) {
	if reply.Type == frame.Error {
		return Result{}, fmt.Errorf("the sandbox refused the call: %s", clean(reply.Message))
	}
	result := Result{
		ExitCode: reply.ExitCode,
		Duration: took,
		Outcome:  reply.Outcome,
		State:    reply.State,
	}
	switch reply.Outcome {
	case frame.OutcomeOK, frame.OutcomeTimeout, frame.OutcomeCancelled, frame.OutcomeCrashed:
	case frame.OutcomeMemory, frame.OutcomeLimit:
		if reply.Limit == nil {
			s.fail("the agent named the outcome %s and no limit", reply.Outcome)
			return Result{}, s.gone()
		}
	default:
		s.fail("the agent named the outcome %.20q", reply.Outcome)
		return Result{}, s.gone()
	}
	switch reply.State {
	case "", frame.StateKept, frame.StateLost:
	default:
		s.fail("the agent named the state %.20q", reply.State)
		return Result{}, s.gone()
	}
	if l := reply.Limit; l != nil {
		if !slices.Contains(limits, l.Name) || l.Value < 0 || l.Used < 0 || l.Used > maxUsed {
			s.fail("the agent named the limit %.20q, of which %d were used", l.Name, l.Used)
			return Result{}, s.gone()
		}
		result.Limit = l
	}
	for _, cut := range reply.Truncated {
		if len(result.Stored) < 2 && inside(cut.Path) && cut.Stored > 0 {
			result.Stored = append(result.Stored, Stored{Path: cut.Path, Bytes: cut.Stored, All: cut.Stored >= cut.Total})
		}
	}
	result.Files = files(reply.Files)
	return result, nil
}

// files keeps what a file under /workspace can be.
func files(all []frame.File) []frame.File {
	kept := make([]frame.File, 0, min(len(all), maxFiles))
	for _, file := range all {
		if len(kept) == maxFiles {
			break
		}
		if inside(file.Path) && file.Size >= 0 {
			kept = append(kept, file)
		}
	}
	return kept
}

// inside says whether a path that a sandbox sent names a file under
// /workspace and can be shown.
func inside(name string) bool {
	return len(name) <= 1024 && strings.HasPrefix(name, "/workspace/") && path.Clean(name) == name &&
		!strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd })
}

// Read returns at most length bytes of a file under /workspace, from offset,
// and the whole file's size.
func (s *Sandbox) Read(ctx context.Context, path string, offset, length int64) ([]byte, int64, error) {
	length = min(length, ReadChunk)
	reply, err := s.question(ctx, frame.Request{Type: frame.Read, Path: path, Offset: offset, Length: length}, frame.Contents)
	if err != nil {
		return nil, 0, err
	}
	if int64(len(reply.Contents)) > length || reply.Size < 0 {
		s.fail("the agent sent more of a file than was asked for")
		return nil, 0, s.gone()
	}
	return reply.Contents, reply.Size, nil
}

// question asks the agent something that it answers at once.
func (s *Sandbox) question(ctx context.Context, message frame.Request, want string) (frame.Reply, error) {
	req := &request{want: want, frames: 1}
	if _, err := s.ask(message, req, replyWithin); err != nil {
		return frame.Reply{}, err
	}
	timer := time.NewTimer(replyWithin)
	defer timer.Stop()
	select {
	case reply := <-req.answer:
		if reply.Type == frame.Error {
			return frame.Reply{}, errors.New(clean(reply.Message))
		}
		return reply, nil
	case <-ctx.Done():
		return frame.Reply{}, ctx.Err()
	case <-s.dead:
		return frame.Reply{}, s.gone()
	case <-timer.C:
		s.fail("the agent did not answer within %v", replyWithin)
		return frame.Reply{}, s.gone()
	}
}

// fail ends the sandbox for a reason.
func (s *Sandbox) fail(format string, args ...any) {
	s.mu.Lock()
	if s.reason == "" {
		s.reason = fmt.Sprintf(format, args...)
	}
	s.mu.Unlock()
	s.Kill()
}

// Kill ends everything in the sandbox and returns at once; [Sandbox.Reaped]
// tells when nothing is left.
func (s *Sandbox) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.killed {
		return
	}
	s.killed = true
	if s.reason == "" {
		s.reason = "it was ended"
	}
	// End of input ends an agent by itself; the signal ends what it runs in,
	// and that the rest with it.
	s.stdin.Close()
	if !s.waiting {
		syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	}
	s.stdout.SetReadDeadline(time.Now())
}

// abandon ends a sandbox that nobody wants any more, waits until nothing is
// left of it and returns err.
func (s *Sandbox) abandon(err error) error {
	s.Kill()
	<-s.reaped
	return err
}

// Quiet says whether nothing has come from a sandbox that was not asked
// anything: it lives, as far as can be told without asking.
func (s *Sandbox) Quiet() bool {
	select {
	case <-s.dead:
		return false
	default:
	}
	// Its processes end one descriptor after the other: an end of either
	// stream counts, as does anything that came.
	return uneventful(s.stdin, 0) && uneventful(s.stdout, unix.POLLIN)
}

// uneventful says whether a descriptor has neither an event nor an end.
func uneventful(file *os.File, event int16) bool {
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	none := false
	err = raw.Control(func(fd uintptr) {
		events := []unix.PollFd{{Fd: int32(fd), Events: event}}
		n, err := unix.Poll(events, 0)
		none = err == nil && n == 0
	})
	return err == nil && none
}

// Memory is what the sandbox used when its interpreter had loaded, in bytes;
// 0 where it was not started to wait for that.
func (s *Sandbox) Memory() int64 { return s.memory }

// OnEnd has f called once when nothing is left of the sandbox: now, if that
// is so already. It must not wait.
func (s *Sandbox) OnEnd(f func()) {
	s.mu.Lock()
	over := s.over
	if !over {
		s.ends = append(s.ends, f)
	}
	s.mu.Unlock()
	if over {
		f()
	}
}

// finish tells those who asked that nothing is left.
func (s *Sandbox) finish() {
	s.mu.Lock()
	s.over = true
	ends := s.ends
	s.mu.Unlock()
	for _, f := range ends {
		f()
	}
}

// Dead is closed when the sandbox can no longer be asked anything.
func (s *Sandbox) Dead() <-chan struct{} { return s.dead }

// Reaped is closed when no process and descriptor of the sandbox is left.
func (s *Sandbox) Reaped() <-chan struct{} { return s.reaped }

// gone waits for the log's end, which is near, and returns the death.
func (s *Sandbox) gone() error {
	<-s.reaped
	return s.death()
}

func (s *Sandbox) death() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &DeadError{Reason: s.reason, Limit: s.limit, Log: s.tail.String()}
}

package framed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/pipe"
)

const (
	// answerMargin is how much later than a call's time limit and grace the
	// agent may answer before its sandbox is killed.
	answerMargin = 5 * time.Second
	readTimeout  = 5 * time.Second
	// clockEvery is how late a call may be ended whose clock can stand still.
	clockEvery = 100 * time.Millisecond
	// readBytes is the largest part of a file that one read frame asks for, in bytes.
	readBytes = 256 << 10
	maxFiles  = 1000
	// bufferBytes is the buffer for a sandbox's stream, in bytes: the size of most results. Each
	// idle sandbox has one; the rest of a longer frame is read without it.
	bufferBytes = 1 << 10
	// lastBytesTimeout bounds the wait for the ends of the log and of the
	// network's events when the sandbox has ended.
	lastBytesTimeout = 100 * time.Millisecond
	// maxPending bounds the requests that wait for an answer.
	maxPending = 64
	// temporary is the folder outside of the workspace of which a result may name files.
	temporary = "/tmp/"
	// maxUsed bounds the reported use of a limit.
	maxUsed = 1 << 40
)

// limits are the names of limits that an agent may report.
var limits = []string{frame.Memory, frame.PIDs, frame.FileLocks, frame.EpollWatches, frame.Terminals}

var (
	_ sandbox.Saver     = (*Sandbox)(nil)
	_ sandbox.Suspender = (*Sandbox)(nil)
	_ sandbox.Layered   = (*Sandbox)(nil)
	_ sandbox.Pooled    = (*Sandbox)(nil)
	_ sandbox.Visitable = (*Sandbox)(nil)
	_ sandbox.Grower    = (*Sandbox)(nil)
)

// Sandbox is a [sandbox.Sandbox] with an agent that speaks frames.
type Sandbox struct {
	log         *slog.Logger
	process     *process.Process
	stdin       *os.File
	stdout      *os.File
	stderr      *os.File
	frames      *frame.Writer
	telling     sync.Mutex // of tell
	logTail     logTail
	network     *network  // nil if the environment has none
	launcher    *launcher // nil if the program reports nothing
	control     *control  // nil if the program cannot be asked
	outputBytes int64     // that a call may send of each stream, before escapes
	enforcedBy  string
	owner       func(principal string) cgroup.Owner
	memory      int64 // bytes in use when its interpreter had loaded
	// grown are the programs of the environments that it has: the one that it was started with, and those
	// of Grow and Add; one of these works at a time.
	grown   []string
	growing sync.Mutex
	// upper receives the upper layer of the project's overlay, or is nil if it was not requested.
	upper *os.File

	ready  chan struct{} // closed when the agent was ready
	done   chan struct{} // closed when nothing can be asked any more
	reaped chan struct{} // closed when its process and streams are gone

	mu      sync.Mutex
	lastID  uint64
	pending map[uint64]*pending
	reason  string // of death; empty while nothing is wrong
	limit   string // that was the reason, if one was
	killed  bool

	ended context.Context // done when nothing is left
	end   context.CancelFunc
}

// pending is a request to the agent that has no answer yet.
type pending struct {
	want      string // the type of the answer
	answer    chan frame.Reply
	output    *output    // of an execute; otherwise nil
	codeCalls *codeCalls // what its code may ask, or nil
	visit     *visit     // of open; otherwise nil
	// frames and bytes bound the rest of the frames before the answer.
	frames int64
	bytes  int64
}

func newSandbox(log *slog.Logger, started *process.Process, stdin, stdout, stderr *os.File, outputBytes int64) *Sandbox {
	ended, end := context.WithCancel(context.Background())
	return &Sandbox{
		log: log, process: started, stdin: stdin, stdout: stdout, stderr: stderr,
		ended: ended, end: end,
		frames:      frame.NewWriter(pipe.New(stdin)),
		outputBytes: outputBytes,
		ready:       make(chan struct{}),
		done:        make(chan struct{}),
		reaped:      make(chan struct{}),
		pending:     map[uint64]*pending{},
	}
}

// within is how long a thing may take that is not code, if it may usually take d.
func (s *Sandbox) within(d time.Duration) time.Duration {
	if s.launcher != nil {
		return d * machinePatience
	}
	return d
}

func (s *Sandbox) pid() int { return s.process.Cmd.Process.Pid }

// run reads the sandbox's streams until they end, and then ends the rest.
func (s *Sandbox) run() {
	var logged sync.WaitGroup
	logged.Go(func() {
		defer guard.Recover(func(err error) { s.fail("%v", err) })
		if !s.logTail.follow(s.stderr, s.log) {
			s.fail("it logged more than %d MiB", maxLog>>20)
		}
	})
	if s.network != nil {
		logged.Go(func() {
			defer guard.Recover(func(err error) { s.fail("%v", err) })
			s.network.follow(s.done)
		})
	}
	err := s.read(pipe.New(s.stdout))
	s.fail("%v", err)
	close(s.done)
	status := s.process.Wait()
	s.findOutOfMemory()
	// The log is in the pipes by now; do not wait for a process that still has the other end of
	// one.
	s.stderr.SetReadDeadline(time.Now().Add(lastBytesTimeout))
	s.network.stop(lastBytesTimeout)
	logged.Wait()
	s.stdin.Close()
	s.stdout.Close()
	s.stderr.Close()
	s.control.close()
	if upper := s.Upper(); upper != nil {
		upper.Close()
	}
	s.log.Debug("sandbox ended", "pid", s.pid(), "reason", s.reason, "status", fmt.Sprint(status))
	close(s.reaped)
}

// findOutOfMemory makes the memory limit the reason of death if the kernel killed processes because
// of it.
func (s *Sandbox) findOutOfMemory() {
	killed, err := s.process.Killed()
	if err != nil {
		s.log.Warn("it is not known whether the sandbox ran out of memory", "error", err)
	}
	if killed.Processes == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason, s.limit = "it used more memory than its limit allows", frame.Memory
	if killed.ByOwner {
		s.reason, s.limit = "the sandboxes of its principal together used more memory than they may", sandbox.MemoryUsed
	}
}

// read dispatches frames until the stream ends or breaks a rule.
func (s *Sandbox) read(stream io.Reader) (err error) {
	defer guard.Recover(func(problem error) { err = problem })
	// Output and result come in one write, and are taken by one read.
	frames := frame.NewReader(bufio.NewReaderSize(stream, bufferBytes))
	// The largest honest frames are a read's answer, in base64, and the whole output of a stream,
	// in which JSON may write a byte as six.
	frames.Limit(2*readBytes + 6*s.outputBytes + 64<<10)
	var hello frame.Reply
	if err := frames.Read(&hello); err != nil {
		return streamError(err)
	}
	if hello.Type != frame.Ready || hello.Protocol != frame.Protocol {
		return fmt.Errorf("its first frame is %.20q with protocol %d, not ready with protocol %d", hello.Type, hello.Protocol, frame.Protocol)
	}
	close(s.ready)
	for {
		var reply frame.Reply
		if err := frames.Read(&reply); err != nil {
			return streamError(err)
		}
		if err := s.dispatch(reply); err != nil {
			return err
		}
	}
}

func streamError(err error) error {
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
		// A report of the agent's own end does not answer a call.
		return errors.New("it was ended")
	}
	p := s.pending[reply.ID]
	if p == nil {
		if reply.Type == frame.Error && reply.ID == 0 {
			return fmt.Errorf("the agent failed: %.200q", reply.Message)
		}
		return fmt.Errorf("the agent sent %.20q for a request that nobody made", reply.Type)
	}
	if reply.Type == frame.Call && p.codeCalls != nil {
		return p.codeCalls.take(reply)
	}
	if p.visit != nil && reply.Type != p.want && reply.Type != frame.Error {
		return p.visit.take(reply)
	}
	p.frames--
	p.bytes -= int64(len(reply.Data))
	if p.frames < 0 || p.bytes < 0 {
		return errors.New("the agent sent more than it may")
	}
	switch {
	case reply.Type == frame.Output && p.output != nil:
		return p.output.add(reply)
	case reply.Type == p.want, reply.Type == frame.Error:
		delete(s.pending, reply.ID)
		p.answer <- reply // is buffered for the one answer
		return nil
	default:
		return fmt.Errorf("the agent answered with %.20q instead of %s", reply.Type, p.want)
	}
}

// register prepares for the answer to a request that is about to be sent with
// the id that it returns.
func (s *Sandbox) register(p *pending) (uint64, error) {
	p.answer = make(chan frame.Reply, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) >= maxPending {
		return 0, fmt.Errorf("%d requests to one sandbox wait already", maxPending)
	}
	s.lastID++
	s.pending[s.lastID] = p
	return s.lastID, nil
}

// send sends a request. Its answer arrives at p's channel, if the sandbox lives. If the agent does
// not read within timeout, the sandbox is ended.
func (s *Sandbox) send(message frame.Request, p *pending, timeout time.Duration) (uint64, error) {
	id, err := s.register(p)
	if err != nil {
		return 0, err
	}
	message.ID = id
	s.stdin.SetWriteDeadline(time.Now().Add(timeout))
	if err := s.frames.Write(message); err != nil {
		s.mu.Lock()
		delete(s.pending, message.ID)
		s.mu.Unlock()
		if errors.Is(err, frame.ErrTooLarge) {
			return 0, err
		}
		s.fail("it does not take requests: %v", err)
		return 0, s.death()
	}
	return message.ID, nil
}

// Run implements [sandbox.Sandbox].
func (s *Sandbox) Run(ctx context.Context, request sandbox.Request) (sandbox.Result, error) {
	if err := ctx.Err(); err != nil {
		return sandbox.Result{}, err
	}
	began := time.Now()
	out := &output{}
	request.Progress.Follow(func(limit int) (stdout, stderr sandbox.Text, line string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return out.stdout.end(limit), out.stderr.end(limit), lastLine(out.newest)
	})
	ctx, end := context.WithCancel(ctx)
	defer end() // of what is asked for the call
	s.network.begin(ctx, request.Host)
	reply, err := s.execute(ctx, request, out)
	result := sandbox.Result{EnforcedBy: s.enforcedBy, Duration: time.Since(began), Network: s.network.end()}
	said := s.launcher.said()
	result.Isolation, result.Start = said.Isolation, said.Start
	result.Stdout, result.Stderr = s.texts(out)
	if err == nil {
		result.ProjectChanged = s.launcher.takeProjectChanged()
		if err = s.check(reply, &result); err == nil {
			result.Files = files(reply.Files, !request.Keep)
		}
	}
	return result, err
}

func (s *Sandbox) texts(out *output) (stdout, stderr sandbox.Text) {
	s.mu.Lock() // the reader may still add to it
	defer s.mu.Unlock()
	return out.texts(int(s.outputBytes))
}

// execute sends the request and waits for its result.
func (s *Sandbox) execute(ctx context.Context, request sandbox.Request, out *output) (frame.Reply, error) {
	margin := s.within(answerMargin)
	limit := request.Clock.AtMost(request.Timeout) + request.Grace + margin
	samples := int64(limit/time.Second) * 4
	p := &pending{
		want:   frame.Result,
		output: out,
		// An honest agent sends each byte of a stream once, at worst one by one and each as three
		// if they are not UTF-8, and a sample a second.
		frames: 2*s.outputBytes + samples + 1000,
		bytes:  2*3*s.outputBytes + samples*sampleBytes + 64<<10,
	}
	if request.Ask != nil {
		p.codeCalls = newCodeCalls(ctx, s, request, s.tell)
		defer p.codeCalls.close()
	}
	id, err := s.send(frame.Request{
		Type:      frame.Execute,
		Code:      request.Code,
		Given:     request.Given,
		TimeoutMS: request.Clock.AtMost(request.Timeout).Milliseconds(),
		GraceMS:   request.Grace.Milliseconds(),
		Keep:      request.Keep,
		Shared:    request.Shared,
	}, p, limit)
	if err != nil {
		return frame.Reply{}, err
	}
	began := time.Now()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	cancelled := ctx.Done()
	// The agent knows nothing of a clock that can stand still: this process ends the call.
	var clock <-chan time.Time
	if request.Clock != nil {
		clock = time.After(request.Timeout)
	}
	late := false
	interrupt := func() {
		timer.Reset(request.Grace + margin)
		s.stdin.SetWriteDeadline(time.Now().Add(margin))
		if err := s.frames.Write(frame.Request{Type: frame.Interrupt, ID: id}); err != nil {
			s.fail("it does not take interrupts: %v", err)
		}
	}
	for {
		select {
		case reply := <-p.answer:
			if late && reply.Outcome == frame.OutcomeCancelled {
				reply.Outcome = frame.OutcomeTimeout
			}
			return reply, nil
		case <-clock:
			if left := request.Timeout - time.Since(began) + request.Clock.Held(); left > 0 {
				// It may stand still just now.
				clock = time.After(max(left, clockEvery))
				continue
			}
			clock, cancelled, late = nil, nil, true
			interrupt()
		case <-s.done:
			// The answer may have come just before the end.
			select {
			case reply := <-p.answer:
				return reply, nil
			default:
				return frame.Reply{}, s.death()
			}
		case <-timer.C:
			s.fail("the agent did not end the call at its time limit")
			return frame.Reply{}, s.death()
		case <-cancelled:
			clock, cancelled = nil, nil
			interrupt()
		}
	}
}

// check takes the agent's report of a call into the result. A report that breaks a rule ends the
// sandbox.
func (s *Sandbox) check(reply frame.Reply, result *sandbox.Result) error {
	if reply.Type == frame.Error {
		return fmt.Errorf("the sandbox refused the call: %s", hostile.Message(reply.Message))
	}
	invalid := func(format string, args ...any) error {
		s.fail(format, args...)
		return s.death()
	}
	switch reply.Outcome {
	case frame.OutcomeOK, frame.OutcomeTimeout, frame.OutcomeCancelled, frame.OutcomeCrashed:
	case frame.OutcomeMemory, frame.OutcomeLimit:
		if reply.Limit == nil {
			return invalid("the agent named the outcome %s and no limit", reply.Outcome)
		}
	default:
		return invalid("the agent named the outcome %.20q", reply.Outcome)
	}
	switch reply.State {
	case "", frame.StateKept, frame.StateLost:
	default:
		return invalid("the agent named the state %.20q", reply.State)
	}
	if l := reply.Limit; l != nil {
		if !slices.Contains(limits, l.Name) || l.Value < 0 || l.Used < 0 || l.Used > maxUsed {
			return invalid("the agent named the limit %.20q, of which %d were used", l.Name, l.Used)
		}
	}
	result.Outcome, result.State, result.ExitCode, result.Limit = reply.Outcome, reply.State, reply.ExitCode, reply.Limit
	for _, cut := range reply.Truncated {
		if len(result.Stored) < 2 && inWorkspace(cut.Path) && cut.Stored > 0 {
			result.Stored = append(result.Stored, sandbox.Stored{Path: cut.Path, Bytes: cut.Stored, All: cut.Stored >= cut.Total})
		}
	}
	return nil
}

// files returns only those files that code can have written, and last those that cannot be read. Loose
// says that they may be elsewhere than in outputs.
func files(all []frame.File, loose bool) []sandbox.File {
	var kept, unread []sandbox.File
	for _, file := range all {
		if len(kept)+len(unread) == maxFiles {
			break
		}
		one := sandbox.File{Path: file.Path, Size: file.Size, Linked: file.Linked}
		switch {
		case file.Size < 0:
		case inWorkspace(file.Path) && one.Readable() && (loose || path.Dir(file.Path)+"/" != sandbox.WorkspaceFolder):
			kept = append(kept, one)
		case inFolder(file.Path, temporary) && loose:
			unread = append(unread, one)
		}
	}
	return append(kept, unread...)
}

// inWorkspace reports whether a path that a sandbox sent names a file under
// /workspace. U+FFFD stands for bytes of a name that JSON cannot carry.
func inWorkspace(name string) bool { return inFolder(name, sandbox.WorkspaceFolder) }

func inFolder(name, folder string) bool {
	return len(name) <= 1024 && strings.HasPrefix(name, folder) && path.Clean(name) == name && !strings.ContainsAny(name, "\x00\ufffd")
}

// CopyFile implements [sandbox.Sandbox].
func (s *Sandbox) CopyFile(ctx context.Context, to io.Writer, name string, limit int64) (int64, error) {
	for copied := int64(0); ; {
		part, size, err := s.readPart(ctx, name, copied, readBytes)
		if err != nil {
			return copied, err
		}
		if size = max(size, copied+int64(len(part))); size > limit {
			return copied, &sandbox.TooLargeError{Size: size, Limit: limit}
		}
		if buffer, ok := to.(*bytes.Buffer); ok && copied == 0 {
			buffer.Grow(int(size)) // once
		}
		if _, err := to.Write(part); err != nil {
			return copied, fmt.Errorf("copy a file: %w", err)
		}
		copied += int64(len(part))
		// A file that shrinks meanwhile ends with an empty part.
		if len(part) == 0 || copied >= size {
			return copied, nil
		}
	}
}

// readPart returns at most length bytes of a file, from offset, and the whole
// file's size.
func (s *Sandbox) readPart(ctx context.Context, name string, offset, length int64) ([]byte, int64, error) {
	reply, err := s.request(ctx, frame.Request{Type: frame.Read, Path: name, Offset: offset, Length: length}, frame.Contents, readTimeout)
	if err != nil {
		return nil, 0, err
	}
	if int64(len(reply.Contents)) > length || reply.Size < 0 {
		s.fail("the agent sent more of a file than was asked for")
		return nil, 0, s.death()
	}
	return reply.Contents, reply.Size, nil
}

// request sends a request and waits for the one frame that answers it. If that does not come within
// timeout, the sandbox is ended.
func (s *Sandbox) request(ctx context.Context, request frame.Request, want string, timeout time.Duration) (frame.Reply, error) {
	reply, err := s.glance(ctx, request, want, timeout)
	if err == errSlow {
		s.fail("the agent did not answer within %v", s.within(timeout))
		err = s.death()
	}
	return reply, err
}

var errSlow = errors.New("the agent did not answer in time")

// glance is request, and its error is errSlow if the answer does not come. The sandbox goes on.
func (s *Sandbox) glance(ctx context.Context, request frame.Request, want string, timeout time.Duration) (frame.Reply, error) {
	timeout = s.within(timeout)
	p := &pending{want: want, frames: 1}
	if _, err := s.send(request, p, timeout); err != nil {
		return frame.Reply{}, err
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case reply := <-p.answer:
		if reply.Type == frame.Error {
			err := errors.New(hostile.Message(reply.Message))
			if reply.Missing {
				err = &sandbox.MissingFileError{Problem: err.Error()}
			}
			return frame.Reply{}, err
		}
		return reply, nil
	case <-ctx.Done():
		return frame.Reply{}, ctx.Err()
	case <-s.done:
		return frame.Reply{}, s.death()
	case <-timer.C:
		return frame.Reply{}, errSlow
	}
}

// fail ends the sandbox for a reason, unless it has one already.
func (s *Sandbox) fail(format string, args ...any) {
	s.mu.Lock()
	if s.reason == "" {
		s.reason = fmt.Sprintf(format, args...)
	}
	s.mu.Unlock()
	s.Kill()
}

// Kill implements [sandbox.Sandbox].
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
	// End of input ends an agent by itself; the signal ends the program that it runs in, and all
	// others with it.
	s.stdin.Close()
	s.process.Kill()
	s.stdout.SetReadDeadline(time.Now())
}

// abandon ends an unwanted sandbox, waits until all of its processes are gone, and returns err.
func (s *Sandbox) abandon(err error) error {
	s.Kill()
	<-s.reaped
	return err
}

// Idle implements [sandbox.Pooled].
func (s *Sandbox) Idle() bool {
	select {
	case <-s.done:
		return false
	default:
	}
	// A sandbox's processes end one descriptor after the other: an end of
	// either stream counts, as does anything that came.
	return uneventful(s.stdin, 0) && uneventful(s.stdout, unix.POLLIN) && s.network.idle()
}

// uneventful reports whether a descriptor has neither an event nor an end.
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

// Memory implements [sandbox.Pooled].
func (s *Sandbox) Memory() int64 { return s.memory }

// Give implements [sandbox.Pooled].
func (s *Sandbox) Give(principal string) error { return s.process.Give(s.owner(principal)) }

// Upper implements [sandbox.Layered].
func (s *Sandbox) Upper() *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.upper == nil {
		return nil
	}
	// The launcher sent it before the agent started.
	message, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	var upper *os.File
	_, n, flags, _, err := unix.Recvmsg(int(s.upper.Fd()), message, rights, unix.MSG_DONTWAIT)
	if err == nil {
		var files []*os.File
		if files, err = received(rights[:n], flags, "upper layer"); err == nil {
			upper = files[0]
		}
	}
	if err != nil {
		s.log.Debug("the upper layer did not come", "error", err)
	}
	s.upper.Close()
	s.upper = nil
	return upper
}

// Refresh implements [sandbox.Layered]. The kernel shows what it remembers of names for as long as it
// likes: only a holder of the overlay can have it forget.
func (s *Sandbox) Refresh() {}

// Done implements [sandbox.Sandbox].
func (s *Sandbox) Done() <-chan struct{} { return s.done }

// OnEnd implements [sandbox.Sandbox].
func (s *Sandbox) OnEnd(f func()) { context.AfterFunc(s.ended, f) }

// death waits for the log's end, which is near, and returns why the sandbox
// ended.
func (s *Sandbox) death() error {
	<-s.reaped
	s.mu.Lock()
	defer s.mu.Unlock()
	return &sandbox.DeadError{Reason: s.reason, Limit: s.limit, Log: s.logTail.String()}
}

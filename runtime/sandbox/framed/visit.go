package framed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

const (
	// openTimeout bounds the wait for a stream: the agent gives a connection 5 s.
	openTimeout = 8 * time.Second
	// longestVisit bounds the questions of a program beside the calls.
	longestVisit = 30 * 24 * time.Hour
	// maxNamed bounds the files that an answer to look may name, and maxPorts the ports.
	maxNamed = 16
	maxPorts = 64
)

// Look implements [sandbox.Visitable].
func (s *Sandbox) Look(ctx context.Context) (paths []string, count int, err error) {
	reply, err := s.glance(ctx, frame.Request{Type: frame.Look}, frame.Looked, readTimeout)
	if err != nil {
		return nil, 0, err
	}
	for _, file := range reply.Files[:min(len(reply.Files), maxNamed)] {
		if inWorkspace(file.Path) {
			paths = append(paths, file.Path)
		}
	}
	return paths, int(max(reply.Size, int64(len(paths)))), nil
}

// Examine implements [sandbox.Visitable].
func (s *Sandbox) Examine(ctx context.Context) (ports []uint16, memory int64, err error) {
	reply, err := s.glance(ctx, frame.Request{Type: frame.Examine}, frame.Examined, readTimeout)
	return reply.Ports[:min(len(reply.Ports), maxPorts)], max(reply.Size, 0), err
}

// visit is a [sandbox.Stream].
type visit struct {
	box *Sandbox
	id  uint64
	// opened and ended are closed.
	opened, ended chan struct{}

	mu      sync.Mutex
	wake    sync.Cond
	waiting []part // from the sandbox
	taken   int    // of that was read since the last grant
	window  int    // that the sandbox may still send
	granted int    // that the sandbox takes
	noMore  bool   // the sandbox sends no more
	quiet   bool   // the input has ended
	last    *frame.Reply
}

// part is output of one stream of a program.
type part struct {
	stream string
	data   []byte
}

func newVisit(s *Sandbox) *visit {
	st := &visit{box: s, opened: make(chan struct{}), ended: make(chan struct{}), window: frame.Window, granted: frame.Window}
	st.wake.L = &st.mu
	return st
}

// Open implements [sandbox.Visitable].
func (s *Sandbox) Open(ctx context.Context, to frame.Request, ask sandbox.Ask) (sandbox.Stream, error) {
	st := newVisit(s)
	timeout := s.within(openTimeout)
	// Its frames are bounded by what was granted.
	p := &pending{want: frame.Closed, visit: st, frames: math.MaxInt64}
	if ask != nil {
		p.codeCalls = newCodeCalls(s.ended, s, sandbox.Request{Ask: ask, Timeout: longestVisit}, s.tell)
	}
	to.Type = frame.Open
	id, err := s.send(to, p, timeout)
	if err != nil {
		p.codeCalls.close()
		return nil, err
	}
	st.id = id
	go func() {
		defer p.codeCalls.close()
		last := frame.Reply{Message: "the sandbox ended", ExitCode: 128 + int(unix.SIGKILL)}
		select {
		case last = <-p.answer:
		case <-s.done:
		}
		st.mu.Lock()
		st.last, st.noMore = &last, true
		st.mu.Unlock()
		st.wake.Broadcast()
		close(st.ended)
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	switch err := st.awaitOpened(ctx, timer.C); {
	case err == nil:
		return st, nil
	case errors.Is(err, errLate):
		s.fail("the agent did not open a stream within %v", timeout)
		return nil, s.death()
	default:
		st.Close()
		return nil, err
	}
}

var errLate = errors.New("it is late")

// awaitOpened waits until a stream is opened, also one that has ended since. The error is why it was not, ctx's or
// errLate.
func (st *visit) awaitOpened(ctx context.Context, late <-chan time.Time) error {
	select {
	case <-st.opened:
		return nil
	case <-st.ended:
		select {
		case <-st.opened:
			return nil
		default:
			return errors.New(hostile.Message(st.last.Message))
		}
	case <-ctx.Done():
		return ctx.Err()
	case <-late:
		return errLate
	}
}

// take takes a frame of the sandbox before the last one. It does not wait. The error is a rule that
// the frame breaks.
func (st *visit) take(reply frame.Reply) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch reply.Type {
	case frame.Opened:
		select {
		case <-st.opened:
			return errors.New("the agent opened a stream twice")
		default:
			close(st.opened)
		}
	case frame.Bytes:
		if reply.Stream != "" && reply.Stream != frame.Stdout && reply.Stream != frame.Stderr {
			return fmt.Errorf("the agent sent the output %.20q", reply.Stream)
		}
		if st.window -= len(reply.Contents); st.window < 0 || st.noMore {
			return errors.New("the agent sent more on a stream than it may")
		}
		if n := len(st.waiting); n > 0 && st.waiting[n-1].stream == reply.Stream {
			st.waiting[n-1].data = append(st.waiting[n-1].data, reply.Contents...)
		} else if len(reply.Contents) > 0 {
			st.waiting = append(st.waiting, part{reply.Stream, reply.Contents})
		}
		st.noMore = len(reply.Contents) == 0
	case frame.Credit:
		if reply.Size <= 0 || reply.Size > frame.Window-int64(st.granted) {
			return errors.New("the agent took more of a stream than was sent")
		}
		st.granted += int(reply.Size)
	default:
		return fmt.Errorf("the agent sent %.20q on a stream", reply.Type)
	}
	st.wake.Broadcast()
	return nil
}

// Read implements [sandbox.Stream].
func (st *visit) Read(p []byte) (int, error) {
	n, _, err := st.Next(p)
	return n, err
}

// Next implements [sandbox.Stream].
func (st *visit) Next(p []byte) (n int, stream string, err error) {
	st.mu.Lock()
	for len(st.waiting) == 0 && !st.noMore {
		st.wake.Wait()
	}
	if len(st.waiting) > 0 {
		first := &st.waiting[0]
		n, stream = copy(p, first.data), first.stream
		if first.data = first.data[n:]; len(first.data) == 0 {
			st.waiting = st.waiting[1:]
		}
	}
	grant := 0
	if st.taken += n; st.taken >= frame.Window/4 && !st.noMore {
		grant, st.taken = st.taken, 0
		st.window += grant
	}
	st.mu.Unlock()
	if grant > 0 {
		st.box.tell(frame.Request{Type: frame.Credit, ID: st.id, Length: int64(grant)})
	}
	if n == 0 && len(p) > 0 {
		return 0, "", io.EOF
	}
	return n, stream, nil
}

// Write implements [sandbox.Stream].
func (st *visit) Write(p []byte) (n int, err error) {
	for n < len(p) {
		st.mu.Lock()
		for st.granted == 0 && st.last == nil && !st.quiet {
			st.wake.Wait()
		}
		part := p[n:min(len(p), n+frame.StreamPart, n+st.granted)]
		gone := st.last != nil || st.quiet
		st.granted -= len(part)
		st.mu.Unlock()
		if gone {
			return n, io.ErrClosedPipe
		}
		st.box.tell(frame.Request{Type: frame.Input, ID: st.id, Contents: part})
		n += len(part)
	}
	return n, nil
}

// CloseWrite implements [sandbox.Stream].
func (st *visit) CloseWrite() error {
	st.mu.Lock()
	quiet := st.quiet || st.last != nil
	st.quiet = true
	st.mu.Unlock()
	st.wake.Broadcast()
	if !quiet {
		st.box.tell(frame.Request{Type: frame.Input, ID: st.id})
	}
	return nil
}

// Resize implements [sandbox.Stream].
func (st *visit) Resize(t frame.Terminal) error {
	st.box.tell(frame.Request{Type: frame.Resize, ID: st.id, Terminal: &t})
	return nil
}

// Signal implements [sandbox.Stream].
func (st *visit) Signal(number int) error {
	st.box.tell(frame.Request{Type: frame.Signal, ID: st.id, Length: int64(number)})
	return nil
}

// Close implements [sandbox.Stream].
func (st *visit) Close() error {
	st.mu.Lock()
	over := st.last != nil
	st.quiet, st.waiting = true, nil
	st.mu.Unlock()
	st.wake.Broadcast()
	if !over {
		st.box.tell(frame.Request{Type: frame.Close, ID: st.id})
	}
	return nil
}

// ExitCode implements [sandbox.Stream].
func (st *visit) ExitCode() int {
	<-st.ended
	return st.last.ExitCode
}

// Package output reads a stream of an interpreter and its children, and keeps a bounded
// part of it: half of a limit for the beginning, and half for the end.
//
// It also reads between two calls, so that no process in the sandbox blocks on a full
// pipe. That output is the beginning of the next call's. It never waits for the end of a
// pipe, because a background process can keep it open for as long as it likes.
package output

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/pipe"
)

// Limits of what a stream keeps, in bytes.
const (
	MinLimit     = 1 << 10
	MaxLimit     = 2 << 20 // fits into a frame even if JSON needs six bytes for each
	DefaultLimit = 32 << 10
)

// maxSample is the longest sample, in bytes.
const maxSample = 200

// Sequences with which a program takes back what it has written, as from a terminal's screen: now
// (ED of ECMA-48 and xterm, which clear(1) writes), or when it writes more (DECSED, which the driver of
// Python writes for clear_output(wait=True)).
var clearNow, clearAll, clearNext = []byte("\x1b[2J"), []byte("\x1b[3J"), []byte("\x1b[?2J")

// Stream is one captured stream.
type Stream struct {
	raw  syscall.RawConn
	file *os.File
	gate *gate

	mu       sync.Mutex
	chunk    []byte // the buffer of a read
	over     overwriter
	half     int    // of the limit
	head     []byte // the first bytes of the call, at most half
	sent     int    // bytes of head that Take returned
	tail     []byte // a ring of the newest bytes once head is full
	ring     int    // the ring's size: what head leaves of the limit
	at       int    // where the ring's next byte goes
	beyond   int64  // bytes after head
	line     []byte // the newest line's first bytes
	newLine  bool   // line has changed since the last Sample
	overflow func() io.Writer
	store    io.Writer        // the result of overflow
	again    func() io.Writer // overflow, for after a clear

	rest    []byte // the beginning of a sequence that clears
	waits   bool   // for more output, which clears
	cleared bool   // since the last Take
	taken   int    // bytes of the call that Take returned, cleared ones too
}

// New returns a stream and the end of its pipe to which programs write.
func New() (_ *Stream, write *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	s := &Stream{file: os.NewFile(uintptr(p[0]), "output"), chunk: make([]byte, 64<<10), half: DefaultLimit / 2}
	write = os.NewFile(uintptr(p[1]), "output")
	defer func() {
		if err != nil {
			s.file.Close()
			write.Close()
		}
	}()
	// From now on, so that NewFile keeps it out of Go's poller.
	if err := unix.SetNonblock(p[0], true); err != nil {
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		return nil, nil, err
	}
	if s.gate, err = newGate(p[0]); err != nil {
		return nil, nil, err
	}
	return s, write, nil
}

// Read reads until the stream is closed or no program has the other end.
func (s *Stream) Read() {
	for s.gate.wait() == nil {
		var n int
		var err error
		closed := s.raw.Control(func(fd uintptr) {
			s.mu.Lock()
			defer s.mu.Unlock()
			n, err = s.read(int(fd), len(s.chunk))
		})
		if closed != nil || n == 0 || n < 0 && err != unix.EAGAIN {
			return
		}
		if n < len(s.chunk)/2 {
			time.Sleep(pause)
		}
		if s.gate.arm() != nil {
			return
		}
	}
}

// read makes one read of at most limit bytes. The caller holds the lock, so that the bytes
// of two goroutines keep their order.
func (s *Stream) read(fd, limit int) (int, error) {
	n, err := pipe.Read(fd, s.chunk[:min(limit, len(s.chunk))])
	if n > 0 {
		s.take(s.chunk[:n])
		if s.beyond > 0 || len(s.over.line) > 0 {
			s.keepLine(s.chunk[:n])
		}
	}
	return n, err
}

// Drain reads the bytes that are in the pipe at this moment and no more, because a
// background process may write forever.
func (s *Stream) Drain() {
	_ = s.raw.Control(func(fd uintptr) {
		s.mu.Lock()
		defer s.mu.Unlock()
		var left int32
		_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, fd, unix.TIOCINQ, uintptr(unsafe.Pointer(&left)))
		for errno == 0 && left > 0 {
			n, _ := s.read(int(fd), int(left))
			if n <= 0 {
				return
			}
			left -= int32(n)
		}
	})
}

// take takes what a program wrote, and clears if it says so.
func (s *Stream) take(p []byte) {
	if len(s.rest) == 0 && !s.waits && bytes.IndexByte(p, 0x1b) < 0 {
		s.over.add(p, s.add)
		return
	}
	if len(s.rest) > 0 {
		p, s.rest = append(s.rest, p...), nil
	}
	for len(p) > 0 {
		at := bytes.IndexByte(p, 0x1b)
		if at != 0 {
			if s.waits {
				s.clear()
			}
			if at < 0 {
				at = len(p)
			}
			s.over.add(p[:at], s.add)
			p = p[at:]
			continue
		}
		switch {
		case bytes.HasPrefix(p, clearNow), bytes.HasPrefix(p, clearAll):
			s.clear()
			p = p[len(clearNow):]
		case bytes.HasPrefix(p, clearNext):
			s.waits = true
			p = p[len(clearNext):]
		case bytes.HasPrefix(clearNow, p), bytes.HasPrefix(clearAll, p), bytes.HasPrefix(clearNext, p):
			s.rest = bytes.Clone(p)
			return
		default:
			if s.waits {
				s.clear()
			}
			s.over.add(p[:1], s.add)
			p = p[1:]
		}
	}
}

// clear forgets what has been written.
func (s *Stream) clear() {
	s.over = overwriter{}
	s.head, s.sent = s.head[:0], 0
	s.tail, s.ring, s.at, s.beyond = nil, 0, 0, 0
	s.line, s.newLine = nil, false
	s.overflow, s.store = s.again, nil
	s.waits, s.cleared = false, true
}

func (s *Stream) add(p []byte) {
	if s.beyond == 0 {
		n := min(len(p), s.half-len(s.head))
		s.head = append(s.head, p[:n]...)
		if p = p[n:]; len(p) == 0 {
			return
		}
		// A character that is incomplete at half of the limit goes to the ring.
		whole := max(wholeRunes(s.head), s.sent)
		p = append(append([]byte(nil), s.head[whole:]...), p...)
		s.head = s.head[:whole]
		s.ring = 2*s.half - whole
		s.tail = make([]byte, 0, s.ring)
	}
	if s.overflow != nil && s.beyond+int64(len(p)) > int64(s.ring) {
		// The ring is about to overwrite bytes for the first time.
		if s.store = s.overflow(); s.store != nil {
			_, _ = s.store.Write(s.head)
			_, _ = s.store.Write(s.tail)
		}
		s.overflow = nil
	}
	if s.store != nil {
		_, _ = s.store.Write(p)
	}
	s.beyond += int64(len(p))
	if len(p) >= s.ring {
		s.tail = append(s.tail[:0], p[len(p)-s.ring:]...)
		s.at = 0
		return
	}
	n := min(s.ring-len(s.tail), len(p))
	s.tail = append(s.tail, p[:n]...)
	for p = p[n:]; len(p) > 0; p = p[n:] {
		n = copy(s.tail[s.at:], p)
		s.at = (s.at + n) % s.ring
	}
}

// keepLine keeps the beginning of the newest line that is not empty.
func (s *Stream) keepLine(p []byte) {
	end := len(p)
	for end > 0 && (p[end-1] == '\n' || p[end-1] == '\r') {
		end--
	}
	begin := end
	for begin > 0 && p[begin-1] != '\n' && p[begin-1] != '\r' {
		begin--
	}
	if begin == end {
		return
	}
	s.line = append(s.line[:0], bounded.Head(p[begin:end], maxSample)...)
	s.newLine = true
}

// wholeRunes is the length of p without an incomplete character at its end.
func wholeRunes(p []byte) int {
	for i := len(p) - 1; i >= 0 && i >= len(p)-utf8.UTFMax; i-- {
		if utf8.RuneStart(p[i]) {
			if !utf8.FullRune(p[i:]) {
				return i
			}
			break
		}
	}
	return len(p)
}

// SetLimit sets how many bytes of a call this stream keeps: from MinLimit to
// MaxLimit. It is called before the first call.
func (s *Stream) SetLimit(limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.half = int(min(max(limit, MinLimit), MaxLimit)) / 2
	s.reset()
}

// Begin starts a call. If the call's output exceeds the limit, overflow, unless it is nil,
// is called once, with the stream locked. It returns a writer for all of the output, or nil.
func (s *Stream) Begin(overflow func() io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.overflow, s.store, s.again = nil, nil, overflow
	if s.beyond <= int64(s.ring) { // otherwise some bytes are lost
		s.overflow = overflow
	}
}

// Take returns the output since the last Take, and whether the program took back what it wrote before
// that. It returns no more than half of the limit in a call.
func (s *Stream) Take() (text string, cleared bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := min(wholeRunes(s.head), s.sent+max(s.half-s.taken, 0))
	end = wholeRunes(s.head[:max(end, s.sent)])
	if end <= s.sent {
		return "", false
	}
	text, cleared = string(s.head[s.sent:end]), s.cleared
	s.taken += end - s.sent
	s.sent, s.cleared = end, false
	return text, cleared
}

// Sample returns the beginning of the newest line that is not part of Take, each line once.
func (s *Stream) Sample() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.newLine {
		return ""
	}
	s.newLine = false
	return string(s.line)
}

// Rest is the part of a call's output that Take has not returned.
type Rest struct {
	// Cleared says that the program took back what Take has returned.
	Cleared bool
	Head    string
	Skipped int64 // bytes left out between Head and Tail
	Tail    string
	Total   int64 // bytes of the whole call, including those from Take
}

// End ends the call. Later output belongs to the next.
func (s *Stream) End() Rest {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over.add(s.rest, s.add)
	s.over.flush(s.add)
	r := Rest{
		Cleared: s.cleared,
		Head:    string(s.head[s.sent:]),
		Total:   int64(len(s.head)) + s.beyond,
	}
	tail := append(append(make([]byte, 0, len(s.tail)), s.tail[s.at:]...), s.tail[:s.at]...)
	r.Skipped = s.beyond - int64(len(tail))
	if r.Skipped > 0 {
		for i := 0; i < utf8.UTFMax-1 && len(tail) > 0 && !utf8.RuneStart(tail[0]); i++ {
			tail = tail[1:]
			r.Skipped++
		}
	}
	r.Tail = string(tail)
	s.reset()
	return r
}

func (s *Stream) reset() {
	s.head, s.sent = s.head[:0], 0
	s.tail, s.ring, s.at, s.beyond = nil, 0, 0, 0
	s.line, s.newLine = nil, false
	s.overflow, s.store, s.again = nil, nil, nil
	s.rest, s.waits, s.cleared, s.taken = nil, false, false, 0
	if cap(s.head) > s.half {
		s.head = nil
	}
}

// Close ends Read.
func (s *Stream) Close() error { return errors.Join(s.gate.file.Close(), s.file.Close()) }

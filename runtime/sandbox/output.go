package sandbox

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

// sampleBytes is how long the newest line is at most, in bytes.
const sampleBytes = 200

// Output collects both streams of a call within a bound, whatever the agent
// sends: the head and the tail of each.
type Output struct {
	limit int

	mu     sync.Mutex
	stdout stream
	stderr stream
	newest string
}

// Text is a stream as it may be shown.
type Text struct {
	// Head and Tail are valid UTF-8. Tail is empty unless Cut bytes are left
	// out between them.
	Head string
	Tail string
	Cut  int64
}

// NewOutput returns an Output that shows at most limit bytes of both streams
// together.
func NewOutput(limit int64) *Output {
	return &Output{limit: int(limit)}
}

// Newest returns the newest line that was written, in part if it is long.
func (o *Output) Newest() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.newest
}

// Texts returns what is shown of both streams. Each has at least half of the
// room, and what the other does not need.
func (o *Output) Texts() (stdout, stderr Text) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first, second := o.limit/2, o.limit-o.limit/2
	if out := o.stdout.size(); out < first {
		first, second = out, o.limit-out
	} else if err := o.stderr.size(); err < second {
		first, second = o.limit-err, err
	}
	return o.stdout.text(first), o.stderr.text(second)
}

// add takes an output frame; the error is a rule that it breaks.
func (o *Output) add(reply frame.Reply) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if reply.Skipped < 0 {
		return errors.New("the agent skipped fewer than no bytes")
	}
	if line := lastLine(reply.Data); line != "" {
		o.newest = line
	}
	if reply.Sample {
		return nil
	}
	switch reply.Stream {
	case frame.Stdout:
		o.stdout.add(reply.Data, reply.Skipped, o.limit)
	case frame.Stderr:
		o.stderr.add(reply.Data, reply.Skipped, o.limit)
	default:
		return fmt.Errorf("the agent named the stream %.20q", reply.Stream)
	}
	return nil
}

// stream is the head and the tail of a stream: half of the limit each, the
// tail up to twice that before it is cut.
type stream struct {
	head []byte
	tail []byte
	// full says that the head takes no more: what follows is the tail's.
	full bool
	// cut counts the bytes that are left out between head and tail.
	cut int64
}

func (s *stream) add(data string, skipped int64, limit int) {
	if skipped > 0 {
		// Only what follows the last gap is a tail.
		s.cut += skipped + int64(len(s.tail))
		s.tail = s.tail[:0]
		s.full = true
	}
	half := max(limit/2, 1)
	if !s.full {
		n := min(half-len(s.head), len(data))
		s.head = append(s.head, data[:n]...)
		data = data[n:]
		s.full = len(s.head) == half
	}
	if over := len(data) - half; over > 0 {
		s.cut += int64(over + len(s.tail))
		s.tail = s.tail[:0]
		data = data[over:]
	}
	s.tail = append(s.tail, data...)
	if len(s.tail) > 2*half {
		s.trim(half)
	}
}

// trim leaves the tail's last size bytes.
func (s *stream) trim(size int) {
	if over := len(s.tail) - size; over > 0 {
		s.cut += int64(over)
		s.tail = append(s.tail[:0], s.tail[over:]...)
	}
}

func (s *stream) size() int { return len(s.head) + len(s.tail) }

// text returns what fits into room, cut between runes.
func (s *stream) text(room int) Text {
	if s.cut == 0 && s.size() <= room {
		return Text{Head: string(s.head) + string(s.tail)}
	}
	whole := append(append(make([]byte, 0, s.size()), s.head...), s.tail...)
	// The gap of what was left out earlier, if there is one, is at the
	// head's end; what room asks for is cut around it.
	headRoom := min(len(s.head), room/2)
	tailRoom := room - headRoom
	if s.cut > 0 {
		tailRoom = min(tailRoom, len(s.tail))
		headRoom = min(room-tailRoom, len(s.head))
	}
	head, tail := whole[:headRoom], whole[len(whole)-tailRoom:]
	// What comes in is valid UTF-8, so only a rune that a cut fell into is
	// not: at the head's end and at the tail's beginning.
	for len(head) > 0 {
		if r, size := utf8.DecodeLastRune(head); r != utf8.RuneError || size != 1 {
			break
		}
		head = head[:len(head)-1]
	}
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return Text{
		Head: string(head),
		Tail: string(tail),
		Cut:  s.cut + int64(len(whole)-len(head)-len(tail)),
	}
}

// lastLine returns the end of the last line that says something.
func lastLine(data string) string {
	data = strings.TrimRight(data, " \t\r\n")
	// A line that a terminal would show over and over, as progress bars do,
	// begins at its last carriage return.
	line := data[strings.LastIndexAny(data, "\r\n")+1:]
	return clean(end(line, sampleBytes))
}

// clean makes a line from a sandbox fit for one line of a message.
func clean(line string) string {
	if len(line) > 1024 {
		line = line[:1024]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(line, ""))
}

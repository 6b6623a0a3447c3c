package framed

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// blanks are the characters of blank lines.
const blanks = " \t\r\n"

// sampleBytes bounds the newest line, in bytes.
const sampleBytes = 200

// output collects both streams of a call. The agent cuts each of them to the
// environment's bound; how much may come in all is bounded by [pending].
type output struct {
	stdout stream
	stderr stream
	newest string // what came last and is not blank
}

// add takes an output frame; the error is a rule that it breaks.
func (o *output) add(reply frame.Reply) error {
	if reply.Skipped < 0 {
		return errors.New("the agent skipped fewer than no bytes")
	}
	if strings.TrimRight(reply.Data, blanks) != "" {
		o.newest = reply.Data
	}
	if reply.Sample {
		return nil
	}
	to := map[string]*stream{frame.Stdout: &o.stdout, frame.Stderr: &o.stderr}[reply.Stream]
	if to == nil {
		return fmt.Errorf("the agent named the stream %.20q", reply.Stream)
	}
	if reply.Cleared {
		*to = stream{}
	}
	to.add(reply.Data, reply.Skipped)
	return nil
}

// texts returns at most limit bytes of both streams together. Each gets at least half of them, and
// the bytes that the other does not need.
func (o *output) texts(limit int) (stdout, stderr sandbox.Text) {
	first, second := limit/2, limit-limit/2
	if out := o.stdout.size(); out < first {
		first, second = out, limit-out
	} else if err := o.stderr.size(); err < second {
		first, second = limit-err, err
	}
	return o.stdout.text(first), o.stderr.text(second)
}

// stream is the received part of a stream: its beginning, and the bytes after the last gap.
type stream struct {
	head []byte
	tail []byte
	cut  int64 // bytes that are left out between the two; tail is empty without
}

func (s *stream) add(data string, skipped int64) {
	if skipped > 0 {
		s.cut += skipped + int64(len(s.tail))
		s.tail = s.tail[:0]
	}
	if s.cut > 0 {
		s.tail = append(s.tail, data...)
	} else {
		s.head = append(s.head, data...)
	}
}

func (s *stream) size() int { return len(s.head) + len(s.tail) }

// text returns at most limit bytes, cut between runes.
func (s *stream) text(limit int) sandbox.Text {
	if s.cut == 0 && s.size() <= limit {
		return sandbox.Text{Head: string(s.head)}
	}
	head, tail, end := len(s.head), len(s.tail), s.tail
	if s.cut == 0 {
		head, tail, end = len(s.head)/2, len(s.head)-len(s.head)/2, s.head
	}
	// Each gets half of the limit, and the bytes that the other does not need.
	tail = min(tail, max(limit-limit/2, limit-head))
	head = min(head, limit-tail)
	t := sandbox.Text{Head: string(bounded.Head(s.head, head)), Tail: string(sandbox.LastBytes(end, tail))}
	t.Cut = s.cut + int64(s.size()-t.Len())
	return t
}

// end returns the last bytes of what has been received, at most limit.
func (s *stream) end(limit int) sandbox.Text {
	if s.cut == 0 && s.size() <= limit {
		return sandbox.Text{Head: string(s.head)}
	}
	t := sandbox.Text{Tail: string(sandbox.LastBytes(s.tail, limit))}
	if s.cut == 0 {
		t.Tail = string(sandbox.LastBytes(s.head, limit))
	}
	t.Cut = s.cut + int64(s.size()-t.Len())
	return t
}

// lastLine returns the end of the last line that is not blank.
func lastLine(data string) string {
	data = strings.TrimRight(data, blanks)
	// A line that a terminal would show over and over, as progress bars do,
	// begins at its last carriage return.
	line := data[strings.LastIndexAny(data, "\r\n")+1:]
	return hostile.Message(sandbox.LastBytes(line, sampleBytes))
}

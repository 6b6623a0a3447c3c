package server

import (
	"io"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/attempt"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/output"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// capture turns the output of one call into frames.
type capture struct {
	out     *frame.Writer
	id      uint64 // of the call
	streams []*stream
	flushes int
}

type stream struct {
	*output.Stream
	name    string
	archive *workspace.Archive // nil until output is left out of the answer
}

// capture starts the capture of a call. Output of a session's call that exceeds
// the limit is stored in the workspace, where the next call can search it.
func (e *executor) capture(c *call) *capture {
	out := &capture{out: e.out, id: c.ID, streams: []*stream{
		{name: frame.Stdout, Stream: e.stdout},
		{name: frame.Stderr, Stream: e.stderr},
	}}
	for _, s := range out.streams {
		if !c.Keep {
			s.Begin(nil)
			continue
		}
		s.Begin(func() io.Writer {
			if s.archive != nil {
				s.archive.Close() // of what the code took back
			}
			archive, err := e.root.Archive(e.archiveNumber(c), s.name)
			if err != nil {
				e.logf("%v", err)
				return nil
			}
			s.archive = archive
			return archive
		})
	}
	interpreter.Blocking(e.spec.Stdout)
	interpreter.Blocking(e.spec.Stderr)
	return out
}

// archiveNumber is the number in the names of the files with a call's output. Files with
// the lowest numbers are removed first. In a shared workspace it is the time, which no
// other agent uses because one call runs at a time.
func (e *executor) archiveNumber(c *call) uint64 {
	if c.Shared {
		return uint64(time.Now().UnixMilli())
	}
	return e.number
}

// drain reads the pipes until they are empty.
func (c *capture) drain() {
	for _, s := range c.streams {
		s.Drain()
	}
}

// flush sends new output within the first half of the limit, and once a second a sample of
// the rest.
func (c *capture) flush() error {
	c.flushes++
	for _, s := range c.streams {
		if text, cleared := s.Take(); text != "" {
			if err := c.out.Write(c.frame(s, text, cleared)); err != nil {
				return err
			}
		}
		if c.flushes%attempt.FlushesPerSecond != 0 {
			continue
		}
		if line := s.Sample(); line != "" {
			sample := c.frame(s, line, false)
			sample.Sample = true
			if err := c.out.Write(sample); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish ends the capture. It returns the last frames, and a description of the output that
// they leave out.
func (c *capture) finish() (frames []any, truncated []frame.Truncation) {
	for _, s := range c.streams {
		rest := s.End()
		if s.archive != nil {
			s.archive.Close()
		}
		if rest.Skipped == 0 {
			rest.Head += rest.Tail
		}
		if rest.Head != "" || rest.Cleared {
			frames = append(frames, c.frame(s, rest.Head, rest.Cleared))
		}
		if rest.Skipped == 0 {
			continue
		}
		tail := c.frame(s, rest.Tail, false)
		tail.Skipped = rest.Skipped
		frames = append(frames, tail)
		t := frame.Truncation{Stream: s.name, Total: rest.Total}
		if s.archive != nil && s.archive.Stored > 0 {
			t.Path, t.Stored = s.archive.Path, s.archive.Stored
		}
		truncated = append(truncated, t)
	}
	return frames, truncated
}

func (c *capture) frame(s *stream, data string, cleared bool) frame.Reply {
	return frame.Reply{Type: frame.Output, ID: c.id, Stream: s.name, Data: data, Cleared: cleared}
}

package networktest

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

// EventReader reads events. It is not safe for concurrent use.
type EventReader struct {
	lines *bufio.Reader
	err   error
}

// NewEventReader returns a EventReader of r. It allocates [event.MaxLine] bytes and no more,
// whatever comes.
func NewEventReader(r io.Reader) *EventReader {
	return &EventReader{lines: bufio.NewReaderSize(r, event.MaxLine)}
}

// Read returns the next event of a kind that is known, with all texts checked.
// The error is io.EOF at the end of the stream, [event.ErrMalformed], or the
// underlying reader's; each is the result of every later Read too.
func (r *EventReader) Read() (event.Event, error) {
	for r.err == nil {
		var e event.Event
		if e, r.err = r.next(); r.err != nil {
			break
		}
		switch e.Kind {
		case event.Refused, event.Closed, event.Failed, event.Dropped, event.Ended:
			return e, nil
		}
	}
	return event.Event{}, r.err
}

func (r *EventReader) next() (event.Event, error) {
	line, err := r.lines.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return event.Event{}, fmt.Errorf("%w: a line has more than %d bytes", event.ErrMalformed, event.MaxLine)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return event.Event{}, fmt.Errorf("%w: it ends inside a line", event.ErrMalformed)
	case err != nil:
		return event.Event{}, err
	}
	return event.Parse(line)
}

package event

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ErrMalformed reports a stream that is not one of events. Nothing that follows
// it can be trusted.
var ErrMalformed = errors.New("the stream of network events is malformed")

// Reader reads events. It is not safe for concurrent use.
type Reader struct {
	lines *bufio.Reader
	err   error
}

// NewReader returns a Reader of r. It allocates [MaxLine] bytes and no more,
// whatever comes.
func NewReader(r io.Reader) *Reader {
	return &Reader{lines: bufio.NewReaderSize(r, MaxLine)}
}

// Read returns the next event of a kind that is known, with all texts checked.
// The error is io.EOF at the end of the stream, [ErrMalformed], or the
// underlying reader's; each is the result of every later Read too.
func (r *Reader) Read() (Event, error) {
	for r.err == nil {
		var e Event
		if e, r.err = r.next(); r.err != nil {
			break
		}
		switch e.Kind {
		case Refused, Closed, Failed, Dropped, Ended:
			return e, nil
		}
	}
	return Event{}, r.err
}

func (r *Reader) next() (Event, error) {
	line, err := r.lines.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return Event{}, fmt.Errorf("%w: a line has more than %d bytes", ErrMalformed, MaxLine)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return Event{}, fmt.Errorf("%w: it ends inside a line", ErrMalformed)
	case err != nil:
		return Event{}, err
	}
	return Parse(line)
}

// Parse reads one line, with all texts checked. Its kind may be one that this
// version does not know; such events are to be skipped. The error is
// [ErrMalformed].
func Parse(line []byte) (Event, error) {
	if len(line) > MaxLine {
		return Event{}, fmt.Errorf("%w: a line has more than %d bytes", ErrMalformed, MaxLine)
	}
	var e Event
	if err := json.Unmarshal(line, &e); err != nil {
		return Event{}, fmt.Errorf("%w: %s", ErrMalformed, Problem(err))
	}
	err := e.check()
	e.Count = max(e.Count, 1)
	return e, err
}

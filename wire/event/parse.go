package event

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ErrMalformed reports that a stream contains something other than events. Stop reading then: the
// rest cannot be trusted.
var ErrMalformed = errors.New("the stream of network events is malformed")

// Parse reads one line and checks all texts in it. Its kind may be newer than this version; skip
// such events. The error is [ErrMalformed].
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

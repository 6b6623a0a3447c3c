package event

import (
	"encoding/json"
	"sync"
	"time"
)

// A Writer sends single events at most at this rate, in events a second, after
// a burst. What is above it is merged: a flood of refusals must not keep
// whoever reads the events busy.
const (
	rate  = 100
	burst = 256
)

// maxMerged is how many different events wait to be sent with a count.
const maxMerged = 64

// flushEvery is how long merged events wait before they are tried again.
const flushEvery = 100 * time.Millisecond

// Writer writes events. It is safe for concurrent use, and no method blocks.
type Writer struct {
	mu     sync.Mutex
	send   func(line []byte) bool
	buffer []byte

	budget  float64
	filled  time.Time
	merged  map[Event]int64
	dropped int64
	timer   *time.Timer
}

// NewWriter returns a Writer that passes each line to send, which returns false
// where it cannot take the line now. send must not block and must not keep the
// line. It is called by one goroutine at a time.
func NewWriter(send func(line []byte) bool) *Writer {
	return &Writer{send: send, budget: burst, filled: time.Now(), merged: map[Event]int64{}}
}

// Write sends an event before it returns. Where events come faster than the
// rate, or the stream is full, equal refusals and failures are sent as one
// later, with their number as Count; other events are counted as dropped.
func (w *Writer) Write(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.Count = max(e.Count, 1)
	if e.Kind == Closed {
		e.Count = 0
	}
	w.refill()
	// An event that readers refuse would end the whole stream.
	malformed := e.check() != nil
	if !malformed && w.budget >= 1 && w.line(e) {
		w.budget--
		return
	}
	key := e
	key.Count = 0
	_, known := w.merged[key]
	switch {
	case malformed || e.Kind == Closed || e.Kind == Dropped || !known && len(w.merged) >= maxMerged:
		w.dropped += max(e.Count, 1)
	default:
		w.merged[key] += e.Count
	}
	if w.timer == nil {
		w.timer = time.AfterFunc(flushEvery, w.flush)
	}
}

// refill adds what the rate allows since the last time.
func (w *Writer) refill() {
	now := time.Now()
	w.budget = min(burst, w.budget+now.Sub(w.filled).Seconds()*rate)
	w.filled = now
}

// flush sends what was merged, as far as the rate and the stream allow.
func (w *Writer) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = nil
	w.refill()
	for e, count := range w.merged {
		e.Count = count
		if w.budget < 1 || !w.line(e) {
			break
		}
		w.budget--
		e.Count = 0
		delete(w.merged, e)
	}
	if w.dropped > 0 && w.budget >= 1 && w.line(Event{Kind: Dropped, Count: w.dropped}) {
		w.budget--
		w.dropped = 0
	}
	if len(w.merged) > 0 || w.dropped > 0 {
		w.timer = time.AfterFunc(flushEvery, w.flush)
	}
}

// line sends one line, and returns false where the stream is full.
func (w *Writer) line(e Event) bool {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // no field can fail
	}
	w.buffer = append(append(w.buffer[:0], text...), '\n')
	return w.send(w.buffer)
}

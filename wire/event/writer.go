package event

import (
	"encoding/json"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A Writer sends single events at most at this rate, in events a second, after a burst. Events
// above it are merged, so that a flood of refusals cannot keep the reader busy.
const (
	perSecond = 100
	burst     = 256
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

	rate    *rate.Limiter
	merged  map[Event]int64
	dropped int64
	timer   *time.Timer
}

// NewWriter returns a Writer that passes each line to send, which returns false if it cannot take
// the line now. send must neither block nor retain the line. One goroutine at a time calls it.
func NewWriter(send func(line []byte) bool) *Writer {
	return &Writer{send: send, rate: rate.NewLimiter(perSecond, burst), merged: map[Event]int64{}}
}

// Write sends an event before it returns. If events come faster than the rate, or the stream is
// full, equal refusals and failures are merged and sent later with their number as Count. Other
// events are counted as dropped.
func (w *Writer) Write(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.Count = max(e.Count, 1)
	if e.Kind == Closed {
		e.Count = 0
	}
	// An event that readers refuse would end the whole stream.
	malformed := e.check() != nil
	if !malformed && w.rate.Allow() && w.line(e) {
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

// flush sends merged events as far as the rate and the stream allow.
func (w *Writer) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = nil
	for e, count := range w.merged {
		e.Count = count
		if !w.rate.Allow() || !w.line(e) {
			break
		}
		e.Count = 0
		delete(w.merged, e)
	}
	if w.dropped > 0 && w.rate.Allow() && w.line(Event{Kind: Dropped, Count: w.dropped}) {
		w.dropped = 0
	}
	if len(w.merged) > 0 || w.dropped > 0 {
		w.timer = time.AfterFunc(flushEvery, w.flush)
	}
}

// line sends one line, and returns false if the stream is full.
func (w *Writer) line(e Event) bool {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // no field can fail
	}
	w.buffer = append(append(w.buffer[:0], text...), '\n')
	return w.send(w.buffer)
}

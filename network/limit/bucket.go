// Package limit bounds how often and how much: rates and bytes.
package limit

import (
	"sync"
	"time"
)

// Bucket is a token bucket: it has at most burst tokens, and gets rate new
// ones each second. It is safe for concurrent use.
type Bucket struct {
	rate, burst float64

	mu     sync.Mutex
	tokens float64 // negative where callers wait
	filled time.Time
}

// NewBucket returns a full bucket.
func NewBucket(rate, burst int) *Bucket {
	return &Bucket{rate: float64(rate), burst: float64(burst), tokens: float64(burst), filled: time.Now()}
}

// Take takes a token, and returns how long the caller has to wait before it may
// use it. Where that would be longer than most, it takes none and returns false.
func (b *Bucket) Take(most time.Duration) (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = min(b.burst, b.tokens+now.Sub(b.filled).Seconds()*b.rate)
	b.filled = now
	var wait time.Duration
	if b.tokens < 1 {
		wait = time.Duration((1 - b.tokens) / b.rate * float64(time.Second))
	}
	if wait > most {
		return 0, false
	}
	b.tokens--
	return wait, true
}

// Wait takes a token and waits until it may be used.
func (b *Bucket) Wait() {
	if wait, _ := b.Take(forever); wait > 0 {
		time.Sleep(wait)
	}
}

const forever = time.Duration(1<<63 - 1)

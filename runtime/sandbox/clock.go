package sandbox

import (
	"context"
	"sync"
	"time"
)

// Clock is the time that a call may take. It stands still while a user is asked.
type Clock struct {
	// Most bounds for how long it stands still altogether.
	Most time.Duration

	mu    sync.Mutex
	holds int
	since time.Time     // when it stopped, if holds is not 0
	held  time.Duration // before that
}

// Hold stops the clock until release is called. The context ends when it has stood still for
// too long.
func (c *Clock) Hold(ctx context.Context) (_ context.Context, release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds++; c.holds == 1 {
		c.since = time.Now()
	}
	ctx, cancel := context.WithTimeout(ctx, c.Most-c.held-time.Since(c.since))
	return ctx, sync.OnceFunc(func() {
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.holds--; c.holds == 0 {
			c.held += time.Since(c.since)
		}
	})
}

// Held returns for how long the clock has stood still. That of nil never does.
func (c *Clock) Held() time.Duration {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.held
	if c.holds > 0 {
		held += time.Since(c.since)
	}
	return min(held, c.Most)
}

// most is how long the clock may stand still.
func (c *Clock) most() time.Duration {
	if c == nil {
		return 0
	}
	return c.Most
}

// AtMost returns how long a call of a time limit may take, if its clock stands still for as long as
// it may.
func (c *Clock) AtMost(limit time.Duration) time.Duration { return limit + c.most() }

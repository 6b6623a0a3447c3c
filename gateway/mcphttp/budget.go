package mcphttp

import (
	"context"
	"sync"
	"time"
)

// budget shares out memory: all bytes together and those of one principal are bounded.
type budget struct {
	all, each int64
	// wishes bounds the bytes that are waited for: what waits may be in memory.
	wishes int64

	// drained is called when everything has been given back; it may be nil.
	drained func()

	mu      sync.Mutex
	used    int64
	waiting int64
	by      map[string]int64
	freed   chan struct{} // closed when something is given back
}

func newBudget(all, each, wishes int64) *budget {
	return &budget{all: all, each: each, wishes: wishes, by: map[string]int64{}, freed: make(chan struct{})}
}

// take waits, at most for within, until a principal may have n bytes, and returns what
// gives them back. It is nil where it waited in vain, or too much waits already. A wish
// beyond the bound of one principal is cut to that, so that it is met some time.
func (b *budget) take(ctx context.Context, within time.Duration, principal string, n int64) (giveBack func()) {
	n = min(n, b.each)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.fits(principal, n) {
		if b.waiting+n > b.wishes {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		b.waiting += n
		for ctx.Err() == nil && !b.fits(principal, n) {
			freed := b.freed
			b.mu.Unlock()
			select {
			case <-freed:
			case <-ctx.Done():
			}
			b.mu.Lock()
		}
		b.waiting -= n
		if !b.fits(principal, n) {
			return nil
		}
	}
	b.used += n
	b.by[principal] += n
	return sync.OnceFunc(func() { b.give(principal, n) })
}

func (b *budget) fits(principal string, n int64) bool {
	return b.used+n <= b.all && b.by[principal]+n <= b.each
}

func (b *budget) give(principal string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.by[principal] -= n; b.by[principal] == 0 {
		delete(b.by, principal)
	}
	close(b.freed)
	b.freed = make(chan struct{})
	if b.used == 0 && b.drained != nil {
		b.drained()
	}
}

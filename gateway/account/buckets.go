package account

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Buckets bound a rate for each principal.
type Buckets struct {
	perSecond rate.Limit
	burst     int
	most      int

	mu sync.Mutex
	of map[string]*rate.Limiter
}

// NewBuckets returns Buckets that allow each principal burst at once and perSecond later, and
// remember at most so many principals.
func NewBuckets(perSecond float64, burst, most int) *Buckets {
	return &Buckets{perSecond: rate.Limit(perSecond), burst: burst, most: most, of: map[string]*rate.Limiter{}}
}

// Wait waits until a principal may have n more. n is at most the burst.
func (b *Buckets) Wait(principal string, n int) {
	b.mu.Lock()
	limiter := b.of[principal]
	if limiter == nil {
		b.forget()
		limiter = rate.NewLimiter(b.perSecond, b.burst)
		b.of[principal] = limiter
	}
	b.mu.Unlock()
	_ = limiter.WaitN(context.Background(), n) // fails only if n is more than the burst
}

// forget makes room for another principal. It drops the buckets that are full again, or the
// fullest one if all are in use.
func (b *Buckets) forget() {
	if len(b.of) < b.most {
		return
	}
	now := time.Now()
	fullest, most := "", -1.0
	for principal, limiter := range b.of {
		tokens := limiter.TokensAt(now)
		if tokens >= float64(b.burst) {
			delete(b.of, principal)
		} else if tokens > most {
			fullest, most = principal, tokens
		}
	}
	if len(b.of) >= b.most {
		delete(b.of, fullest)
	}
}

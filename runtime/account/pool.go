package account

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Terms say how principals share a number of bytes, calls or places.
type Terms struct {
	// Total bounds the use of all principals together. 0 means no bound.
	Total int64
	// Least is the amount that each principal may use even if others use much. Reserve is the
	// part of Total that is kept for this: enough for Reserve/Least principals at a time.
	// Beyond Least, a principal may use at most as much as it leaves free.
	Least, Reserve int64
	// Each returns the quota of one principal. nil means no quota.
	Each func(principal string) int64
}

// QuotaError reports that a principal would have more than its own quota.
type QuotaError struct{ Used, Wanted, Max int64 }

func (e *QuotaError) Error() string {
	return fmt.Sprintf("%d are in use, and %d more were asked for: %d are allowed", e.Used, e.Wanted, e.Max)
}

// ErrFull reports that principals together use too much.
var ErrFull = errors.New("others use too much")

// Pool shares something among principals. Its methods may be called at the same time.
type Pool struct {
	terms Terms

	mu   sync.Mutex
	used int64
	// small is the part of used that is covered by the reserve.
	small int64
	held  map[string]int64
	// waiting has a queue for each principal, and order lists the principals by turn.
	waiting map[string][]*wish
	order   []string
}

// wish is a request that waits. Granted is closed when it is met.
type wish struct {
	n       int64
	granted chan struct{}
}

// NewPool returns an unused Pool.
func NewPool(terms Terms) *Pool {
	return &Pool{terms: terms, held: map[string]int64{}, waiting: map[string][]*wish{}}
}

// Try charges a principal for n until release is called. It returns a [*QuotaError] if the
// principal's own quota is used up, and [ErrFull] if others use too much.
func (p *Pool) Try(principal string, n int64) (release func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(principal, n); err != nil {
		return nil, err
	}
	p.add(principal, n)
	return p.releaser(principal, n), nil
}

// Take waits until it can charge a principal for n. Requests of one principal are met in their
// order, and principals take turns. The error is ctx's, or [ErrFull] if n is too much even for
// a principal that is alone.
func (p *Pool) Take(ctx context.Context, principal string, n int64) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if t := p.terms; t.Total > 0 && n > t.Least && 2*n > t.Total-t.Reserve {
		return nil, ErrFull
	}
	one := &wish{n, make(chan struct{})}
	p.mu.Lock()
	if len(p.waiting[principal]) == 0 {
		p.order = append(p.order, principal)
	}
	p.waiting[principal] = append(p.waiting[principal], one)
	p.serve()
	p.mu.Unlock()
	select {
	case <-one.granted:
		return p.releaser(principal, n), nil
	case <-ctx.Done():
		p.giveUp(principal, one)
		return nil, ctx.Err()
	}
}

// Held returns the use of one principal.
func (p *Pool) Held(principal string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[principal]
}

// Used returns the use of all principals together.
func (p *Pool) Used() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// check returns nil if a principal may have n more.
func (p *Pool) check(principal string, n int64) error {
	t, held := p.terms, p.held[principal]
	if t.Each != nil {
		if most := t.Each(principal); held+n > most {
			return &QuotaError{held, n, most}
		}
	}
	if t.Total == 0 {
		return nil
	}
	free := t.Total - p.used - n
	if free < 0 || held+n > t.Least && held+n > free-max(0, t.Reserve-p.small) {
		return ErrFull
	}
	return nil
}

func (p *Pool) releaser(principal string, n int64) func() {
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.add(principal, -n)
		p.serve()
	})
}

func (p *Pool) add(principal string, n int64) {
	before := p.held[principal]
	p.used += n
	p.small += min(before+n, p.terms.Least) - min(before, p.terms.Least)
	if p.held[principal] += n; p.held[principal] == 0 {
		delete(p.held, principal)
	}
}

// serve grants wishes. Principals take turns.
func (p *Pool) serve() {
	for {
		at := slices.IndexFunc(p.order, func(principal string) bool { return p.check(principal, p.waiting[principal][0].n) == nil })
		if at < 0 {
			return
		}
		principal := p.order[at]
		one := p.waiting[principal][0]
		p.order = slices.Delete(p.order, at, at+1)
		if p.waiting[principal] = p.waiting[principal][1:]; len(p.waiting[principal]) > 0 {
			p.order = append(p.order, principal)
		} else {
			delete(p.waiting, principal)
		}
		p.add(principal, one.n)
		close(one.granted)
	}
}

// giveUp withdraws a wish. If it has just been granted, giveUp gives it back.
func (p *Pool) giveUp(principal string, one *wish) {
	p.mu.Lock()
	defer p.mu.Unlock()
	queue := p.waiting[principal]
	if at := slices.Index(queue, one); at < 0 {
		p.add(principal, -one.n)
	} else if p.waiting[principal] = slices.Delete(queue, at, at+1); len(queue) == 1 {
		delete(p.waiting, principal)
		p.order = slices.DeleteFunc(p.order, func(other string) bool { return other == principal })
	}
	// The wish may have been in the way of a smaller one.
	p.serve()
}

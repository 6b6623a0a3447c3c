// Package fair shares out what there are few of among principals.
//
// It promises that whoever asks for more than others waits for them, and not they for
// him: slots go from one principal to the next, and one alone never has all of them,
// so that one who comes finds a slot that is free.
package fair

import (
	"context"
	"slices"
	"sync"
)

// Gate has slots. Its methods may be called at the same time.
type Gate struct {
	most int // slots of one principal

	mu   sync.Mutex
	free int
	held map[string]int
	// waiting are the queues of principals, order is whose turn is next.
	waiting map[string][]chan struct{}
	order   []string
}

// NewGate returns a Gate with so many slots, of which one principal has at most the
// given number at a time; 0 is as many as are free beside its own, so half of them.
func NewGate(slots, most int) *Gate {
	return &Gate{most: most, free: slots, held: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// Enter waits for a slot, in the order of a principal's requests, and returns what gives
// it back. The error is ctx's.
func (g *Gate) Enter(ctx context.Context, principal string) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	turn := make(chan struct{})
	g.mu.Lock()
	if len(g.waiting[principal]) == 0 {
		g.order = append(g.order, principal)
	}
	g.waiting[principal] = append(g.waiting[principal], turn)
	g.serve()
	g.mu.Unlock()
	select {
	case <-turn:
	case <-ctx.Done():
		if !g.giveUp(principal, turn) {
			g.leave(principal)
		}
		return nil, ctx.Err()
	}
	return sync.OnceFunc(func() { g.leave(principal) }), nil
}

// Waiting is how many wait for a slot.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, queue := range g.waiting {
		n += len(queue)
	}
	return n
}

// leave gives a slot back.
func (g *Gate) leave(principal string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free++
	if g.held[principal]--; g.held[principal] == 0 {
		delete(g.held, principal)
	}
	g.serve()
}

// giveUp takes a request out of its queue. It is false where it has a slot by now.
func (g *Gate) giveUp(principal string, turn chan struct{}) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := slices.Index(g.waiting[principal], turn)
	if at < 0 {
		return false
	}
	g.waiting[principal] = slices.Delete(g.waiting[principal], at, at+1)
	if len(g.waiting[principal]) == 0 {
		delete(g.waiting, principal)
		g.order = slices.DeleteFunc(g.order, func(other string) bool { return other == principal })
	}
	return true
}

// serve gives slots to those whose turn it is.
func (g *Gate) serve() {
	for g.free > 0 {
		at := slices.IndexFunc(g.order, g.mayHave)
		if at < 0 {
			return
		}
		principal := g.order[at]
		g.order = slices.Delete(g.order, at, at+1)
		turn := g.waiting[principal][0]
		if g.waiting[principal] = g.waiting[principal][1:]; len(g.waiting[principal]) > 0 {
			g.order = append(g.order, principal)
		} else {
			delete(g.waiting, principal)
		}
		g.free--
		g.held[principal]++
		close(turn)
	}
}

// mayHave reports whether a principal may have one more slot.
func (g *Gate) mayHave(principal string) bool {
	held := g.held[principal]
	if g.most > 0 {
		return held < g.most
	}
	return held == 0 || held < g.free
}

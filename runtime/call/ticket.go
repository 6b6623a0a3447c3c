package call

import "sync"

// Ticket is a call's position in the queue of its session. Tickets are given out
// in the order in which calls arrive, whatever order their goroutines run in.
type Ticket struct {
	// Turn is closed when the calls before this one have ended.
	Turn <-chan struct{}
	// Key is the session's.
	Key     Key
	once    sync.Once
	release func()
}

// NewTicket returns a ticket that calls release once.
func NewTicket(key Key, turn <-chan struct{}, release func()) *Ticket {
	return &Ticket{Turn: turn, Key: key, release: release}
}

// Release gives the position up, whether its turn came or not. It may be called
// more than once, and on nil.
func (t *Ticket) Release() {
	if t != nil {
		t.once.Do(t.release)
	}
}

package server

import "sync"

// maxPings bounds the waiting pings. Older ones are dropped.
const maxPings = 64

// pings queues pings until the interpreter has loaded or failed. It is safe for concurrent
// use.
type pings struct {
	// answer answers a ping. failure is nil if the interpreter has loaded.
	answer func(id uint64, failure error) error

	mu      sync.Mutex
	waiting []uint64
	known   bool  // the interpreter has loaded or failed
	failure error // why it failed
}

// add answers a ping once the interpreter has loaded or failed.
func (p *pings) add(id uint64) error {
	p.mu.Lock()
	known, failure := p.known, p.failure
	if !known {
		p.waiting = append(p.waiting[max(0, len(p.waiting)-maxPings+1):], id)
	}
	p.mu.Unlock()
	if !known {
		return nil
	}
	return p.answer(id, failure)
}

func (p *pings) pending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) > 0
}

// started makes pings wait for a new interpreter.
func (p *pings) started() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known, p.failure = false, nil
}

// answerAll answers the waiting pings. failure is nil if the interpreter has loaded.
func (p *pings) answerAll(failure error) {
	p.mu.Lock()
	waiting := p.waiting
	p.waiting, p.known, p.failure = nil, true, failure
	p.mu.Unlock()
	for _, id := range waiting {
		// The executor learns of a broken stream when it sends a result.
		_ = p.answer(id, failure)
	}
}

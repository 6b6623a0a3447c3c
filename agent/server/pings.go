package server

import "sync"

// maxPings bounds the pings that wait for the interpreter. The newest are kept.
const maxPings = 64

// pings keeps pings until it is known whether the interpreter has loaded. It is
// safe for concurrent use.
type pings struct {
	// answer answers a ping; failure is nil where the interpreter has loaded.
	answer func(id uint64, failure error) error

	mu      sync.Mutex
	waiting []uint64
	known   bool  // the interpreter has loaded or failed
	failure error // why it failed
}

// add answers a ping now or when the interpreter has loaded or failed.
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

// started has pings wait: an interpreter was started.
func (p *pings) started() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known, p.failure = false, nil
}

// settle answers the pings that wait: the interpreter has loaded, or has failed
// with an error.
func (p *pings) settle(failure error) {
	p.mu.Lock()
	waiting := p.waiting
	p.waiting, p.known, p.failure = nil, true, failure
	p.mu.Unlock()
	for _, id := range waiting {
		// The executor learns of a broken stream when it sends a result.
		_ = p.answer(id, failure)
	}
}

package mcphttp

import (
	"context"
	"crypto/rand"
	"sync"
	"time"
)

const (
	// maxSessions bounds all HTTP sessions, and maxSessionsEach the idle ones of a principal.
	// Its calls and streams bound the others.
	maxSessions     = 4096
	maxSessionsEach = 64
	// sessionIdle is how long an HTTP session lives without requests.
	sessionIdle = time.Hour
)

// httpSession is an HTTP session. Clients that begin with initialize name it in each request.
// A client that loses it begins another one and misses nothing, because sessions of the tool
// belong to the principal.
type httpSession struct {
	id        string
	principal string
	elicits   bool // the client shows forms

	// Guarded by the mutex of sessions.
	used   time.Time
	calls  map[string]*running // by the ids of their requests
	stream context.CancelFunc  // ends the open GET; nil if no GET is open
}

// running is a request that can be cancelled by a notification.
type running struct{ cancel context.CancelFunc }

type sessions struct {
	mu   sync.Mutex
	byID map[string]*httpSession
	each map[string]int // how many a principal has
}

func newSessions() *sessions {
	return &sessions{byID: map[string]*httpSession{}, each: map[string]int{}}
}

// begin returns a new HTTP session. If the principal has too many, its longest unused idle
// session ends. If all principals together have too many, the longest unused one ends.
func (s *sessions) begin(principal string, elicits bool) *httpSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	isSpare := func(one *httpSession) bool { return one.principal == principal && one.isIdle() }
	for s.each[principal] >= maxSessionsEach && s.endOldest(isSpare) {
	}
	if len(s.byID) >= maxSessions {
		s.endOldest(func(*httpSession) bool { return true })
	}
	one := &httpSession{id: rand.Text(), principal: principal, elicits: elicits, used: time.Now(), calls: map[string]*running{}}
	s.byID[one.id] = one
	s.each[principal]++
	return one
}

// endOldest ends the longest unused session that is eligible, preferably an idle one. It
// reports whether a session was eligible.
func (s *sessions) endOldest(eligible func(*httpSession) bool) bool {
	var oldest *httpSession
	isFirst := func(a, b *httpSession) bool {
		if a.isIdle() != b.isIdle() {
			return a.isIdle()
		}
		return a.used.Before(b.used)
	}
	for _, one := range s.byID {
		if eligible(one) && (oldest == nil || isFirst(one, oldest)) {
			oldest = one
		}
	}
	if oldest != nil {
		s.end(oldest)
	}
	return oldest != nil
}

// isIdle reports whether the session has neither calls nor a stream.
func (s *httpSession) isIdle() bool { return len(s.calls) == 0 && s.stream == nil }

// end forgets a session. Its calls continue.
func (s *sessions) end(one *httpSession) {
	if s.byID[one.id] != one {
		return
	}
	delete(s.byID, one.id)
	if s.each[one.principal]--; s.each[one.principal] == 0 {
		delete(s.each, one.principal)
	}
	if one.stream != nil {
		one.stream()
	}
}

// find returns a principal's session, or nil if the principal has no such session.
func (s *sessions) find(principal, id string) *httpSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.byID[id]
	if one == nil || one.principal != principal {
		return nil
	}
	if one.isIdle() && time.Since(one.used) > sessionIdle {
		s.end(one)
		return nil
	}
	one.used = time.Now()
	return one
}

func (s *sessions) remove(one *httpSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(one)
}

// remember lets a notification cancel a request of the session until forget is called.
func (s *sessions) remember(one *httpSession, id string, cancel context.CancelFunc) (forget func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	request := &running{cancel}
	one.calls[id] = request
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		// Another request may have come under the same id.
		if one.calls[id] == request {
			delete(one.calls, id)
		}
		one.used = time.Now()
	}
}

func (s *sessions) cancel(one *httpSession, id string) {
	s.mu.Lock()
	request := one.calls[id]
	s.mu.Unlock()
	if request != nil {
		request.cancel()
	}
}

// open makes a GET the stream of the session. It ends an earlier GET, because a lost
// connection may go unnoticed. The caller calls closed when the stream ends.
func (s *sessions) open(one *httpSession, cancel context.CancelFunc) (closed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.stream != nil {
		one.stream()
	}
	replaced := false
	one.stream = func() {
		replaced = true
		cancel()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !replaced {
			one.stream = nil
		}
		one.used = time.Now()
	}
}

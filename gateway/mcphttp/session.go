package mcphttp

import (
	"context"
	"crypto/rand"
	"sync"
	"time"
)

const (
	// maxSessions bounds the HTTP sessions, maxSessionsEach those of one principal in
	// which nothing goes on. Its others are bounded by its calls and streams.
	maxSessions     = 10000
	maxSessionsEach = 64
	// sessionIdle is after what time an HTTP session that nobody uses ends.
	sessionIdle = time.Hour
)

// httpSession is an HTTP session: clients of the revisions that begin with initialize name
// it in each request. It has nothing that matters, because what code left behind is
// the principal's: a client that loses it begins another one.
type httpSession struct {
	id        string
	principal string

	// Guarded by the mutex of sessions.
	used   time.Time
	calls  map[string]*running // by the ids of their requests
	stream context.CancelFunc  // ends the GET that is open; nil where there is none
}

// running is a request that can be cancelled.
type running struct{ cancel context.CancelFunc }

// sessions are the HTTP sessions by id.
type sessions struct {
	mu   sync.Mutex
	byID map[string]*httpSession
	each map[string]int // how many a principal has
}

func newSessions() *sessions {
	return &sessions{byID: map[string]*httpSession{}, each: map[string]int{}}
}

// begin returns a new HTTP session. Where there are too many, the one ends that nobody
// has used for longest: one of the principal's in which nothing goes on, if it has as
// many as it may.
func (s *sessions) begin(principal string) *httpSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	isSpare := func(one *httpSession) bool { return one.principal == principal && one.isIdle() }
	for s.each[principal] >= maxSessionsEach && s.endOldest(isSpare) {
	}
	if len(s.byID) >= maxSessions {
		s.endOldest(func(*httpSession) bool { return true })
	}
	one := &httpSession{id: rand.Text(), principal: principal, used: time.Now(), calls: map[string]*running{}}
	s.byID[one.id] = one
	s.each[principal]++
	return one
}

// endOldest ends the session that was used first, of those that are eligible; rather
// one that has neither calls nor a stream. It is false where none is eligible.
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

// isIdle reports whether nothing of the session goes on.
func (s *httpSession) isIdle() bool { return len(s.calls) == 0 && s.stream == nil }

// end forgets a session. Its calls go on.
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

// find returns a principal's session, or nil. That of another principal is not told
// from one that does not exist.
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

// remember has a notification cancel a request of the session, until the returned
// function is called.
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

// open makes a GET the session's stream, in place of one whose end nobody saw. The
// returned function says that it has ended.
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

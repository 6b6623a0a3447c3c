package mcphttp

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"sync"
)

// httpSession is an HTTP session. Clients of earlier revisions begin one with initialize, and name
// it in each request. The server holds nothing for it: sessions of the tool belong to the
// principal, and the id says the rest.
type httpSession struct {
	id      string
	elicits bool // the client shows forms
}

// An id is a random text, a mark, and a code that only this server can make for its principal.
const (
	randomSize = 26
	formsMark  = "f"
	plainMark  = "p"
	idSize     = randomSize + len(formsMark) + 2*sha256.Size
)

// sessions are the HTTP sessions of a server.
type sessions struct {
	key [sha256.Size]byte

	mu sync.Mutex
	// running are requests that can be cancelled: calls by a session and the id of their request,
	// and open GETs by a session.
	running map[string]*running
}

// running is a request that can be cancelled.
type running struct{ cancel context.CancelFunc }

func newSessions() *sessions {
	s := &sessions{running: map[string]*running{}}
	_, _ = rand.Read(s.key[:]) // which never fails
	return s
}

// open returns a new HTTP session's id.
func (s *sessions) open(principal string, elicits bool) string {
	mark := plainMark
	if elicits {
		mark = formsMark
	}
	id := rand.Text()[:randomSize] + mark
	return id + s.code(id, principal)
}

// code returns the code that follows the rest of an id, which has a fixed length.
func (s *sessions) code(id, principal string) string {
	mac := hmac.New(sha256.New, s.key[:])
	_, _ = io.WriteString(mac, id+principal)
	return hex.EncodeToString(mac.Sum(nil))
}

// find returns a principal's session, or nil if the principal has no such session.
func (s *sessions) find(principal, id string) *httpSession {
	const end = idSize - 2*sha256.Size
	if len(id) != idSize || !hmac.Equal([]byte(s.code(id[:end], principal)), []byte(id[end:])) {
		return nil
	}
	return &httpSession{id, id[randomSize:end] == formsMark}
}

// remember lets [sessions.cancel] cancel a request by a name, until forget is called. Another
// request of that name cannot be cancelled any more, or is cancelled if replaces is set.
func (s *sessions) remember(name string, cancel context.CancelFunc, replaces bool) (forget func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if former := s.running[name]; replaces && former != nil {
		former.cancel()
	}
	request := &running{cancel}
	s.running[name] = request
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.running[name] == request {
			delete(s.running, name)
		}
	}
}

func (s *sessions) cancel(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if request := s.running[name]; request != nil {
		request.cancel()
	}
}

// Package ask asks users before something happens that an operator marked with ask.
//
// A [Book] has the open questions. Each way by which a user can be asked is a [call.Way]: the client
// of the call, and whoever listens, such as a terminal or the page. Whoever answers first decides,
// and the question is withdrawn from the others. The package promises that only an answer by
// one of these ways allows anything; that an answer counts once, for the question that was shown;
// that a principal sees and answers only its own questions; and that all of this is bounded.
package ask

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
)

const (
	// maxOpen bounds the open questions of a principal, maxOpenAll of all together.
	maxOpen    = 16
	maxOpenAll = 256
	// maxOfCall bounds the questions of a call, so that code cannot tire a user out.
	maxOfCall = 32
	// maxGrants bounds what a principal has allowed for longer than a call. Then users are asked
	// again.
	maxGrants = 1024
)

// Everyone stands for all principals where the server's user answers for each of them. A principal of
// this name would gain nothing: a client answers what it was asked, by its id.
const Everyone = "\x00everyone"

// ErrAnswered reports an answer to a question that is not open, or not the principal's.
var ErrAnswered = errors.New("there is no such open question: it was answered, withdrawn or has expired")

// Book has the open questions of a server, and what users have allowed. Its methods may be called
// at the same time.
type Book struct {
	log *slog.Logger

	mu     sync.Mutex
	open   map[string]*question
	each   map[string]int                        // open questions of a principal
	grants map[string]map[grant]struct{}         // by principal
	heard  map[string]map[chan struct{}]struct{} // listeners of a principal
}

// grant is what a user has allowed beyond a call. Session is empty if it is for all of them.
type grant struct {
	session string
	about   subject
}

// subject is what a longer choice covers.
type subject struct {
	env  string
	kind call.MatterKind
	name string
}

type question struct {
	call.Question
	way    call.Way         // of the call's client; nil if it cannot, or could not, ask. Under Book.mu.
	answer chan call.Choice // is buffered for the one answer
}

// New returns an empty Book.
func New(log *slog.Logger) *Book {
	return &Book{log: log, open: map[string]*question{}, each: map[string]int{}, grants: map[string]map[grant]struct{}{}, heard: map[string]map[chan struct{}]struct{}{}}
}

// Questions returns the open questions of a principal or of [Everyone], the oldest first.
func (b *Book) Questions(principal string) []call.Question {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []call.Question{}
	for _, q := range b.open {
		if q.isOf(principal) {
			list = append(list, q.Question)
		}
	}
	slices.SortFunc(list, func(a, b call.Question) int { return a.Asked.Compare(b.Asked) })
	return list
}

// Answer answers a principal's question. The error is [ErrAnswered], also if the question does not
// offer the choice.
func (b *Book) Answer(principal, id string, choice call.Choice) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.open[id]
	if q == nil || !q.isOf(principal) || !q.Offers(choice) {
		return ErrAnswered
	}
	b.close(q)
	q.answer <- choice
	return nil
}

// Listen says that somebody reads the questions of a principal or of [Everyone] and can answer them,
// until stop is called. The channel has an element when they have changed.
func (b *Book) Listen(principal string) (changed <-chan struct{}, stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	listener := make(chan struct{}, 1)
	if b.heard[principal] == nil {
		b.heard[principal] = map[chan struct{}]struct{}{}
	}
	b.heard[principal][listener] = struct{}{}
	return listener, sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.heard[principal], listener)
		if len(b.heard[principal]) > 0 {
			return
		}
		delete(b.heard, principal)
		// Questions that only a listener could answer are over.
		for _, q := range b.open {
			if q.isOf(principal) && q.way == nil && !b.isHeard(q.Principal) {
				b.close(q)
				q.answer <- call.Nobody
			}
		}
	})
}

// tell has listeners look again. b.mu is held.
func (b *Book) tell(principal string) {
	for _, whose := range []string{principal, Everyone} {
		for listener := range b.heard[whose] {
			select {
			case listener <- struct{}{}:
			default:
			}
		}
	}
}

// isHeard reports whether somebody listens to a principal's questions. b.mu is held.
func (b *Book) isHeard(principal string) bool {
	return len(b.heard[principal]) > 0 || len(b.heard[Everyone]) > 0
}

func (q *question) isOf(principal string) bool {
	return principal == Everyone || q.Principal == principal
}

// close withdraws a question that is open. b.mu is held.
func (b *Book) close(q *question) {
	delete(b.open, q.ID)
	if b.each[q.Principal]--; b.each[q.Principal] == 0 {
		delete(b.each, q.Principal)
	}
	b.tell(q.Principal)
}

// put opens a question. It does not if too many are open, or if no way could answer it.
func (b *Book) put(q *question) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q.way == nil && !b.isHeard(q.Principal) || b.each[q.Principal] >= maxOpen || len(b.open) >= maxOpenAll {
		return false
	}
	q.ID = rand.Text()
	b.open[q.ID] = q
	b.each[q.Principal]++
	b.tell(q.Principal)
	return true
}

// ask puts a question and waits for its answer, until ctx ends.
func (b *Book) ask(ctx context.Context, q *question) call.Choice {
	// A question without time for an answer would flash on every screen.
	if ctx.Err() != nil {
		return call.Nobody
	}
	deadline, _ := ctx.Deadline()
	q.Asked, q.Until, q.answer = time.Now(), deadline, make(chan call.Choice, 1)
	if !b.put(q) {
		return call.Nobody
	}
	shown, withdraw := context.WithCancel(ctx)
	defer withdraw()
	if q.way != nil {
		go func() {
			var choice call.Choice
			err := guard.ErrPanic
			_ = guard.Run(func() { choice, err = q.way.Put(shown, q.Question) }) // is logged
			if err == nil && b.Answer(q.Principal, q.ID, choice) == nil {
				return
			}
			// Another way was faster, or this one is no use.
			b.mu.Lock()
			defer b.mu.Unlock()
			q.way = nil
			if b.open[q.ID] == q && !b.isHeard(q.Principal) {
				b.close(q)
				q.answer <- call.Nobody
			}
		}()
	}
	select {
	case choice := <-q.answer:
		return choice
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[q.ID] == q {
		b.close(q)
		return call.Nobody
	}
	return <-q.answer // it came just before
}

// allowed reports whether a user has allowed a subject before, for a session or for all.
func (b *Book) allowed(principal, session string, about subject) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	grants := b.grants[principal]
	_, always := grants[grant{about: about}]
	_, here := grants[grant{session, about}]
	return always || here && session != ""
}

// allow remembers a choice for longer than a call.
func (b *Book) allow(principal, session string, about subject) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.grants[principal] == nil {
		b.grants[principal] = map[grant]struct{}{}
	}
	if len(b.grants[principal]) < maxGrants {
		b.grants[principal][grant{session, about}] = struct{}{}
	}
}

// forget forgets what was allowed for a session.
func (b *Book) forget(key call.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for g := range b.grants[key.Principal] {
		if g.session == key.ID && key.ID != "" {
			delete(b.grants[key.Principal], g)
		}
	}
	if len(b.grants[key.Principal]) == 0 {
		delete(b.grants, key.Principal)
	}
}

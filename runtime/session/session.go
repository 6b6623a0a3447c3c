// Package session keeps sandboxes for calls: one of its own for each call
// without a session, and one that stays for each session.
//
// It promises that the calls of one session run one at a time in the order in
// which they took their places, that sessions end by their idle time and
// lifetime when they said they would, and that every bound (sessions,
// sandboxes at once) is answered with what to do, never with an endless wait.
//
// The lifetime ends a session between two calls: a call that runs at that
// moment is finished first, which its own time limit bounds, and is told.
package session

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

const (
	// maxOnce is how many sandboxes of calls without a session live at once;
	// further calls wait. Each costs an interpreter's memory.
	maxOnce = 32
	// headStart is what the answer of a call without a session has for itself
	// before its sandbox is ended, which takes a processor for milliseconds.
	headStart = 5 * time.Millisecond
	// maxEnded is how many ended sessions are remembered, to tell the next
	// call what became of it.
	maxEnded = 1024
)

// died is why a session ended whose sandbox did.
const died = "ended because its sandbox died"

// Limits are the operator's.
type Limits struct {
	Idle     time.Duration
	Lifetime time.Duration
	// Max is how many sessions live at once.
	Max int
}

// Refusal is an answer to a call that does not run: a sentence that says what
// to do.
type Refusal struct{ Sentence string }

func (r *Refusal) Error() string { return r.Sentence }

// Lease is a sandbox for the time of one call.
type Lease struct {
	*sandbox.Sandbox
	// Fresh says why a session had to start anew; empty where it did not.
	Fresh string
}

// Source is where sandboxes come from; package pool has one.
type Source interface {
	// Take returns a sandbox in which no code has run.
	Take(context.Context, registry.Environment) (*sandbox.Sandbox, error)
}

// Manager keeps the sandboxes of one client.
type Manager struct {
	source Source
	limits Limits
	log    *slog.Logger
	once   chan struct{} // holds a token for each sandbox without a session
	closed chan struct{}

	mu       sync.Mutex
	sessions map[string]*session
	live     int // sessions that have a sandbox or are starting one
	ended    map[string]string
	order    []string // of ended, oldest first
	ending   bool
}

// session is a line of calls and, between its first call and its end, a
// sandbox. It is forgotten when it has neither.
type session struct {
	id   string
	line []*Place // the first one has its turn
	env  string
	// environment is what the sandbox was started from, whatever is called so
	// now.
	environment registry.Environment
	box         *sandbox.Sandbox
	born        time.Time
	used        time.Time
	timer       *time.Timer
}

// New returns a manager.
func New(source Source, limits Limits, log *slog.Logger) *Manager {
	return &Manager{
		source:   source,
		limits:   limits,
		log:      log,
		once:     make(chan struct{}, maxOnce),
		closed:   make(chan struct{}),
		sessions: map[string]*session{},
		ended:    map[string]string{},
	}
}

// Place is a place in the line of a session.
type Place struct {
	manager *Manager
	session *session
	turn    chan struct{} // closed when it is this call's turn
}

// Enqueue takes the next place in the line of session id. It returns at once,
// so that whoever reads calls can take their places in order of arrival.
// [Place.Leave] must be called.
func (m *Manager) Enqueue(id string) *Place {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[id]
	if s == nil {
		s = &session{id: id}
		m.sessions[id] = s
	}
	if s.timer != nil {
		// It is in use again; the timer starts anew when the line is empty.
		s.timer.Stop()
		s.timer = nil
	}
	p := &Place{manager: m, session: s, turn: make(chan struct{})}
	s.line = append(s.line, p)
	if len(s.line) == 1 {
		close(p.turn)
	}
	return p
}

// Leave gives the place up, whether its turn came or not. It may be called
// more than once.
func (p *Place) Leave() {
	m, s := p.manager, p.session
	m.mu.Lock()
	defer m.mu.Unlock()
	at := slices.Index(s.line, p)
	if at < 0 {
		return
	}
	s.line = slices.Delete(s.line, at, at+1)
	if at == 0 {
		m.after(s)
	}
}

// after settles a session whose first place was given up: it ends what is
// over, and gives the turn to the next call or starts the idle timer.
func (m *Manager) after(s *session) {
	if s.box != nil {
		s.used = time.Now()
		select {
		case <-s.box.Dead():
			m.end(s, died)
		default:
			if left := time.Until(s.born.Add(m.limits.Lifetime)); left <= 0 {
				m.end(s, m.lifetimeOver())
			}
		}
	}
	switch {
	case len(s.line) > 0:
		close(s.line[0].turn)
	case s.box == nil:
		delete(m.sessions, s.id)
	default:
		m.rest(s)
	}
}

// rest sets the timer of a session that nobody uses.
func (m *Manager) rest(s *session) {
	// The words are found when they are needed: this is on every call's way.
	wait, why := m.limits.Idle, m.idleOver
	if left := time.Until(s.born.Add(m.limits.Lifetime)); left < wait {
		wait, why = left, m.lifetimeOver
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		// A call may have come, and even gone, while the timer fired.
		if s.timer == timer {
			m.end(s, why())
			delete(m.sessions, s.id)
		}
	})
	s.timer = timer
}

func (m *Manager) idleOver() string {
	return fmt.Sprintf("ended after %s idle", seconds(m.limits.Idle))
}

func (m *Manager) lifetimeOver() string {
	return fmt.Sprintf("ended at its lifetime of %s", seconds(m.limits.Lifetime))
}

func seconds(d time.Duration) string {
	return fmt.Sprintf("%g s", d.Seconds())
}

// end takes the sandbox from a session and remembers why.
func (m *Manager) end(s *session, why string) {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	s.box.Kill()
	m.live--
	m.log.Info("session ended", "session", s.id, "env", s.env, "why", why, "lived_ms", time.Since(s.born).Milliseconds())
	s.box, s.env = nil, ""
	m.remember(s.id, why)
}

// bury ends a session whose sandbox died while nobody used it; a call that
// uses it finds out by itself.
func (m *Manager) bury(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.box == nil || len(s.line) > 0 {
		return
	}
	select {
	case <-s.box.Dead():
		m.end(s, died)
		delete(m.sessions, s.id)
	default: // the sandbox that ended is an earlier one
	}
}

// remember keeps why a session ended until its next call.
func (m *Manager) remember(id, why string) {
	if _, known := m.ended[id]; !known {
		m.order = append(m.order, id)
	}
	m.ended[id] = why
	for len(m.order) > maxEnded {
		delete(m.ended, m.order[0])
		m.order = m.order[1:]
	}
}

// recall returns why the session ended before, once.
func (m *Manager) recall(id string) string {
	why, known := m.ended[id]
	if !known {
		return ""
	}
	delete(m.ended, id)
	m.order = slices.DeleteFunc(m.order, func(other string) bool { return other == id })
	return why
}

// Use waits for the place's turn and calls f with the session's sandbox,
// which is started if there is none. A place is used once. The error is a
// [*Refusal], ctx's, a [*sandbox.DeadError] of a sandbox that did not start,
// or f's.
func (m *Manager) Use(ctx context.Context, place *Place, env registry.Environment, f func(Lease) error) error {
	if err := m.wait(ctx, place.turn); err != nil {
		return err
	}
	lease, err := m.lease(ctx, place.session, env)
	if err != nil {
		return err
	}
	return f(lease)
}

// wait waits for a turn, the call's end or the server's. A call that was
// cancelled while it waited does not run, even if its turn came too.
func (m *Manager) wait(ctx context.Context, turn <-chan struct{}) error {
	select {
	case <-turn:
	case <-ctx.Done():
	case <-m.closed:
	}
	return m.stopped(ctx)
}

// stopped says why a call may not run any more.
func (m *Manager) stopped(ctx context.Context) error {
	select {
	case <-m.closed:
		return sandbox.ErrClosed
	default:
		return ctx.Err()
	}
}

// lease returns the sandbox of a session whose turn the caller has, so that
// nobody else starts one.
func (m *Manager) lease(ctx context.Context, s *session, env registry.Environment) (Lease, error) {
	m.mu.Lock()
	if s.box != nil {
		select {
		case <-s.box.Dead():
			m.end(s, died)
		default:
			if time.Since(s.born) >= m.limits.Lifetime {
				m.end(s, m.lifetimeOver())
			}
		}
	}
	if s.box != nil {
		defer m.mu.Unlock()
		if s.env != env.Name {
			return Lease{}, &Refusal{fmt.Sprintf("session %q belongs to env %q: call it with that env, or use another session id for %q", s.id, s.env, env.Name)}
		}
		return Lease{Sandbox: s.box}, nil
	}
	if m.live >= m.limits.Max {
		defer m.mu.Unlock()
		return Lease{}, m.full()
	}
	m.live++
	m.mu.Unlock()

	born := time.Now()
	box, err := m.source.Take(ctx, env)
	if err == nil {
		defer box.OnEnd(func() { m.bury(s) })
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.live--
		return Lease{}, err
	}
	if m.ending {
		m.live--
		box.Kill()
		return Lease{}, sandbox.ErrClosed
	}
	s.box, s.env, s.born, s.used = box, env.Name, born, time.Now()
	s.environment = env
	m.log.Info("session started", "session", s.id, "env", env.Name, "ms", time.Since(born).Milliseconds())
	return Lease{Sandbox: box, Fresh: m.recall(s.id)}, nil
}

// full refuses a session beyond the limit and names the ones that are idle,
// the longest first.
func (m *Manager) full() *Refusal {
	var idle []*session
	for _, s := range m.sessions {
		if s.box != nil && len(s.line) == 0 {
			idle = append(idle, s)
		}
	}
	slices.SortFunc(idle, func(a, b *session) int { return a.used.Compare(b.used) })
	text := fmt.Sprintf("all %d sessions are in use", m.limits.Max)
	if len(idle) == 0 {
		return &Refusal{text + " and none is idle: wait until a call has ended, or call without session"}
	}
	var names []string
	for _, s := range idle[:min(len(idle), 8)] {
		names = append(names, fmt.Sprintf("%s (%s, %.0f s)", s.id, s.env, time.Since(s.used).Seconds()))
	}
	if more := len(idle) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return &Refusal{fmt.Sprintf("%s; idle: %s: go on in one of these, or call without session", text, strings.Join(names, ", "))}
}

// Once calls f with a sandbox that is thrown away afterwards. Calls wait in
// line where maxOnce of them run.
func (m *Manager) Once(ctx context.Context, env registry.Environment, f func(Lease) error) error {
	select {
	case m.once <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-m.closed:
		return sandbox.ErrClosed
	}
	if err := m.stopped(ctx); err != nil {
		<-m.once
		return err
	}
	box, err := m.source.Take(ctx, env)
	if err != nil {
		<-m.once
		return err
	}
	// The room is free again when nothing of the sandbox is left, for which
	// the answer need not wait.
	box.OnEnd(func() { <-m.once })
	defer time.AfterFunc(headStart, box.Kill)
	return f(Lease{Sandbox: box})
}

// Find calls f with the sandbox of a live session when the place's turn has
// come; it starts none.
func (m *Manager) Find(ctx context.Context, place *Place, f func(*sandbox.Sandbox) error) error {
	if err := m.wait(ctx, place.turn); err != nil {
		return err
	}
	m.mu.Lock()
	box := place.session.box
	m.mu.Unlock()
	if box == nil {
		return &Refusal{fmt.Sprintf("there is no session %q", place.session.id)}
	}
	return f(box)
}

// Environment returns what a live session was started from. It goes on with
// that when the environment has been replaced, or is not offered any more.
func (m *Manager) Environment(id string) (registry.Environment, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[id]; s != nil && s.box != nil {
		return s.environment, true
	}
	return registry.Environment{}, false
}

// Close ends every session and refuses further calls. Sandboxes of calls that
// run are ended by [sandbox.Launcher.Close].
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ending {
		return
	}
	m.ending = true
	close(m.closed)
	for _, s := range m.sessions {
		if s.box != nil {
			m.end(s, "ended with the server")
		}
	}
}

// Session is the id that the place is for.
func (p *Place) Session() string { return p.session.id }

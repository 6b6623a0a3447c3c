// Package session answers calls in sandboxes. [OneShot] starts a sandbox for each call. A
// [Manager] keeps one for each session, or one for each environment of a session if
// sessions share files.
//
// The calls of a session run one at a time, in the order of their tickets. A session ends
// after its idle time or at its lifetime; a call that runs at that moment is finished
// first, which its own time limit bounds, and the next one is told. A session beyond the
// bound is refused: nothing waits without an end.
//
// A Manager knows a queue, sandboxes and times. Anything else that a session has comes
// from a [Part].
package session

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

const (
	// sessionGrace is the time between interrupt and kill in a session, which loses its
	// state if it is killed.
	sessionGrace = 2 * time.Second
	// settleDelay is how long [Member.Settle] waits if no call does: it takes a processor,
	// and the answer goes first.
	settleDelay = time.Millisecond
	// lastSettlesTimeout bounds the wait for it when the server ends.
	lastSettlesTimeout = 1500 * time.Millisecond
)

// Limits are the operator's.
type Limits struct {
	Idle     time.Duration
	Lifetime time.Duration
	// Max is how many sandboxes all sessions may have at once. MaxEach is the same for the
	// sessions of one principal; if it is nil, only Max counts.
	Max     int
	MaxEach func(principal string) int
}

// SpecFunc returns the sandbox that a call needs.
type SpecFunc func(call.Call) sandbox.Spec

// Options configure a Manager.
type Options struct {
	// Starter starts the sandboxes that Spec describes.
	Starter sandbox.Starter
	Spec    SpecFunc
	// OneShot answers calls without a session.
	OneShot call.Executor
	Limits  Limits
	// Workspaces makes a workspace for each session, so that it can have a sandbox of every
	// environment that its calls name. If it is nil, a session has one environment.
	Workspaces sandbox.Workspaces
	// Parts add to sessions. The first one is the outermost: it acts before the others when
	// a sandbox starts.
	Parts []Part
	Log   *slog.Logger
}

// Manager keeps the sandboxes of sessions.
type Manager struct {
	Options
	startMember StartFunc // through all parts
	closed      chan struct{}
	settling    sync.WaitGroup // is added to before closed is closed
	// ending ends when the server does, before the Manager is closed.
	ending context.Context
	stop   context.CancelFunc

	mu       sync.Mutex
	sessions map[call.Key]*session
	live     int            // sandboxes of sessions that live or are starting
	liveEach map[string]int // of each principal
	ended    map[call.Key]call.Restart
	order    []call.Key // of ended, oldest first
	// settled is closed, and replaced by another channel, whenever a turn that
	// [Manager.settle] marked is given up.
	settled chan struct{}
}

var _ call.Executor = (*Manager)(nil)

// session is a queue of calls and, between its first call and its end, at least one
// sandbox. It is forgotten when it has neither.
type session struct {
	key     call.Key
	queue   []chan struct{}    // one for each ticket; the first is closed
	members map[string]*member // by the names of their environments
	// last is the environment of the last call.
	last string
	// workspace is shared by the members, or nil if a session has one member at most.
	workspace sandbox.Workspace
	// died has the environments whose sandboxes died while the session went on.
	died    map[string]bool
	started time.Time
	used    time.Time
	calls   uint64 // that it has had since it started
	// finished says that a call was the last one. The next one begins the session anew.
	finished bool
	// settling is how many turns in the queue [Manager.settle] marked.
	settling int
	// joined is closed when a turn joins the queue, unless it is nil.
	joined chan struct{}
	// visits is how often [Manager.Visit] has entered it and not left.
	visits int
	timer  *time.Timer // of its idle time; nil while it is in use
}

// member is a sandbox of a session.
type member struct {
	Member
	env registry.Environment
	// restart and notes are for the answer to its first call.
	restart *call.Restart
	notes   []call.Note
}

func (m *member) isDead() bool { return isClosed(m.Sandbox().Done()) }

// environments names the environments that the session has sandboxes of.
func (s *session) environments() string {
	return strings.Join(slices.Sorted(maps.Keys(s.members)), "+")
}

// New returns a Manager. Its owner calls [Manager.Close].
func New(options Options) *Manager {
	ending, stop := context.WithCancel(context.Background())
	m := &Manager{
		Options:  options,
		settled:  make(chan struct{}),
		ending:   ending,
		stop:     stop,
		closed:   make(chan struct{}),
		sessions: map[call.Key]*session{},
		liveEach: map[string]int{},
		ended:    map[call.Key]call.Restart{},
	}
	m.startMember = chain(options.Parts, m.startPlain)
	return m
}

// Enqueue returns the next ticket of a session. It does not wait, so that a transport can
// take the tickets of calls in the order in which they arrive. The caller releases the
// ticket.
func (m *Manager) Enqueue(key call.Key) *call.Ticket {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[key]
	if s == nil {
		s = m.newSession(key)
	}
	turn := m.enqueue(s)
	return call.NewTicket(key, turn, func() { m.release(s, turn) })
}

func (m *Manager) newSession(key call.Key) *session {
	s := &session{key: key, members: map[string]*member{}, died: map[string]bool{}}
	m.sessions[key] = s
	return s
}

// enqueue takes the next turn of a session.
func (m *Manager) enqueue(s *session) (turn chan struct{}) {
	s.stopTimer()
	turn = make(chan struct{})
	s.queue = append(s.queue, turn)
	if s.joined != nil {
		close(s.joined)
		s.joined = nil
	}
	if len(s.queue) == 1 {
		close(turn)
	}
	return turn
}

// release takes a turn out of its queue when its call has been settled.
func (m *Manager) release(s *session, turn chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var todo []func()
	if s.queue[0] == turn && !isClosed(m.closed) {
		for _, member := range s.members {
			todo = append(todo, member.Settle(m.ending.Err() != nil)...)
		}
	}
	if len(todo) == 0 {
		m.dequeue(s, turn)
		return
	}
	if len(s.queue) == 1 {
		joined := make(chan struct{})
		s.joined = joined
		todo = slices.Insert(todo, 0, func() {
			select {
			case <-joined:
			case <-time.After(settleDelay):
			}
		})
	}
	settled := m.settle(s)
	m.settling.Go(func() {
		for _, do := range todo {
			_ = guard.Run(do) // is logged
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		settled()
		m.dequeue(s, turn)
	})
}

// settle marks a turn of a session that belongs to no call, because the session is being suspended,
// or its last call settled. The caller calls done before it gives the turn up.
func (m *Manager) settle(s *session) (done func()) {
	s.settling++
	return func() {
		s.settling--
		close(m.settled)
		m.settled = make(chan struct{})
	}
}

// dequeue takes a turn out of its queue. If it was the current one, dequeue ends the
// session if it is over, and then wakes the next call or starts the idle timer.
func (m *Manager) dequeue(s *session, turn chan struct{}) {
	at := slices.Index(s.queue, turn)
	s.queue = slices.Delete(s.queue, at, at+1)
	if at > 0 {
		return
	}
	s.used = time.Now()
	if s.finished {
		s.finished = false
		m.Log.Info("session ended", "session", s.key.ID, "env", s.environments(), "why", call.Finished, "lived_ms", time.Since(s.started).Milliseconds())
		m.dismiss(s, call.Finished)
	}
	m.endIfOver(s)
	switch {
	case len(s.queue) > 0:
		close(s.queue[0])
	case len(s.members) == 0:
		delete(m.sessions, s.key)
	default:
		m.startTimer(s)
	}
}

// Answer implements [call.Executor]. It waits for the turn of the call's ticket, and
// starts a sandbox unless the session has one that can run the call.
func (m *Manager) Answer(ctx context.Context, c call.Call) (call.Result, error) {
	if c.Session == "" {
		return m.OneShot.Answer(ctx, c)
	}
	ticket := c.Ticket
	if ticket == nil {
		ticket = m.Enqueue(c.Key())
		defer ticket.Release()
	}
	s, err := m.wait(ctx, ticket)
	if err != nil {
		return call.Result{}, err
	}
	one, err := m.lease(ctx, s, c)
	if err != nil {
		return call.Result{}, err
	}
	if one.CanSuspend() {
		// Interrupted code lets the session be suspended when the server ends.
		var stop func()
		ctx, stop = m.untilEnding(ctx)
		defer stop()
	}
	result, err := one.Call(ctx, c, sandbox.Request{Grace: sessionGrace, Keep: true, Shared: m.Workspaces != nil})
	result.Restart, result.Notes = one.restart, append(one.notes, result.Notes...)
	one.restart, one.notes = nil, nil
	if c.Last {
		m.mu.Lock()
		s.finished = true
		m.mu.Unlock()
	}
	if err != nil && m.hasOther(s, one) {
		result.Notes = append(result.Notes, call.Survived{})
	}
	return result, err
}

// untilEnding returns a context that ends with ctx or when the server ends.
func (m *Manager) untilEnding(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(m.ending, cancel)
	return ctx, func() {
		forget()
		cancel()
	}
}

// hasOther reports whether a session has a living sandbox besides one of its members.
func (m *Manager) hasOther(s *session, one *member) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range s.members {
		if other != one && !other.isDead() {
			return true
		}
	}
	return false
}

// wait waits for a ticket's turn, the call's end or the server's. A call that was cancelled
// while it waited does not run, even if its turn came too.
func (m *Manager) wait(ctx context.Context, ticket *call.Ticket) (*session, error) {
	select {
	case <-ticket.Turn:
	case <-ctx.Done():
	case <-m.ending.Done():
	}
	if m.ending.Err() != nil {
		return nil, sandbox.ErrClosed
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sessions[ticket.Key], ctx.Err()
}

// Close ends every session when answered calls have been settled. Later calls fail with
// [sandbox.ErrClosed].
func (m *Manager) Close() {
	m.mu.Lock()
	if isClosed(m.closed) {
		m.mu.Unlock()
		return
	}
	close(m.closed)
	m.stop()
	m.mu.Unlock()
	sandbox.WaitWithin(&m.settling, lastSettlesTimeout)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sessions {
		if len(s.members) > 0 {
			m.end(s, call.Restart{Cause: call.Closed})
		}
	}
}

func isClosed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// Package session answers calls in sandboxes: [Once] starts one for each call,
// [Manager] keeps one for each session, or where sessions share files one for each
// environment of a session.
//
// It promises that the calls of one session run one at a time in the order of
// their tickets, that sessions end by their idle time and lifetime when they
// should, and that a session beyond the bound is an error and never an endless
// wait.
//
// The lifetime ends a session between two calls: a call that runs at that
// moment is finished first, which its own time limit bounds, and the next one
// is told.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/sessionfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/suspended"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

const (
	// sessionGrace is the time between interrupt and kill in a session, where
	// a kill loses the state.
	sessionGrace = 2 * time.Second
	// saveDelay is how long a save waits where no other call does: it takes a processor,
	// and the answer goes first.
	saveDelay = time.Millisecond
	// maxEnded bounds the ended sessions that are remembered, to tell the next
	// call why it begins anew.
	maxEnded = 1024
)

// Limits are the operator's.
type Limits struct {
	Idle     time.Duration
	Lifetime time.Duration
	// Max is how many sandboxes of sessions live at once, MaxEach how many of one
	// principal; nil where Max alone counts.
	Max     int
	MaxEach func(principal string) int
}

// SpecFunc says which sandbox a call needs.
type SpecFunc func(call.Call) sandbox.Spec

// Options are what a Manager is made of.
type Options struct {
	// Starter starts the sandboxes that Spec describes.
	Starter sandbox.Starter
	Spec    SpecFunc
	// Once answers calls without a session.
	Once   call.Executor
	Limits Limits
	// Project is the folder that sandboxes show; the zero value is none.
	Project sandbox.Project
	// Workspaces makes a workspace for each session, on which the session has a sandbox of
	// every environment that its calls name. It is nil where a session has one environment,
	// and where there is a store of Files or Sleeping.
	Workspaces sandbox.Workspaces
	// Files keeps the files of sessions: they are saved after every call that has changed
	// some, and restored when a session of that name and environment begins. It is nil
	// where the files end with their session.
	Files *sessionfiles.Store
	// Changes saves what each session changes in a Project that is an overlay, as a patch,
	// after every call that has changed something; nil where nothing saves it.
	Changes *changes.Store
	// Sleeping keeps sessions whose environment can sleep, when nobody has used them for
	// their idle time, and when the server ends; nil where sessions end instead.
	Sleeping *suspended.Store
	Log      *slog.Logger
}

// Manager keeps the sandboxes of sessions.
type Manager struct {
	Options
	closed chan struct{}
	saves  sync.WaitGroup // is added to before closed is closed
	// ending ends when the server does, before the Manager is closed.
	ending context.Context
	stop   context.CancelFunc

	mu       sync.Mutex
	sessions map[call.Key]*session
	live     int            // sandboxes of sessions that live or are starting
	liveEach map[string]int // of each principal
	ended    map[call.Key]call.Restart
	order    []call.Key // of ended, oldest first
	// settled is closed, and replaced by another channel, when a turn is given up that
	// [Manager.settle] marked.
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
	// workspace is what the members have in common; nil where a session has one
	// member at most.
	workspace sandbox.Workspace
	// died are the environments whose sandboxes died while the session went on.
	died    map[string]bool
	started time.Time
	used    time.Time
	// settling is how many turns in the queue [Manager.settle] marked.
	settling int
	timer    *time.Timer // of its idle time; nil while it is in use
	kept     kept
	// state is what the session slept in, until the first call after that has run; nil
	// otherwise. Only who has the turn uses it.
	state *suspended.State
	// saveChanges saves what the last call changed in the project; nil where there is
	// nothing to save.
	saveChanges func()
}

// member is a sandbox of a session.
type member struct {
	sandbox.Sandbox
	env registry.Environment
	// changes records what the sandbox changes in the project; nil where nothing does.
	changes *changes.Record
}

// environments names those that the session has sandboxes of.
func (s *session) environments() string {
	return strings.Join(slices.Sorted(maps.Keys(s.members)), "+")
}

// related returns the session's sandbox of the same environment with other packages; nil
// where there is none.
func (s *session) related(env registry.Environment) *member {
	for _, member := range s.members {
		if member.env.Added().Base == env.Added().Base {
			return member
		}
	}
	return nil
}

// New returns a Manager. Its owner calls [Manager.Close].
func New(options Options) *Manager {
	ending, stop := context.WithCancel(context.Background())
	return &Manager{
		Options:  options,
		settled:  make(chan struct{}),
		ending:   ending,
		stop:     stop,
		closed:   make(chan struct{}),
		sessions: map[call.Key]*session{},
		liveEach: map[string]int{},
		ended:    map[call.Key]call.Restart{},
	}
}

// Enqueue returns the next ticket of a session. It does not wait, so that
// whoever reads calls takes their tickets in order of arrival. The caller
// releases the ticket.
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
	if len(s.queue) == 1 {
		close(turn)
	}
	return turn
}

// release takes a ticket out of its queue, after what its call wrote is saved.
func (m *Manager) release(s *session, turn chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.queue[0] == turn && !isClosed(m.closed) {
		if saves := m.takeSaves(s); len(saves) > 0 {
			if len(s.queue) == 1 {
				saves = slices.Insert(saves, 0, func() { time.Sleep(saveDelay) })
			}
			settled := m.settle(s)
			m.saves.Go(func() {
				for _, save := range saves {
					save()
				}
				m.mu.Lock()
				defer m.mu.Unlock()
				settled()
				m.dequeue(s, turn)
			})
			return // the ticket is released when they are done
		}
	}
	m.dequeue(s, turn)
}

// settle marks a turn of a session as one that no call has: the session is put to disk, or
// what its last call changed is saved. The caller calls done when it gives the turn up.
func (m *Manager) settle(s *session) (done func()) {
	s.settling++
	return func() {
		s.settling--
		close(m.settled)
		m.settled = make(chan struct{})
	}
}

// takeSaves returns what is to be saved after the call that has a turn.
func (m *Manager) takeSaves(s *session) (saves []func()) {
	if s.saveChanges != nil {
		saves = append(saves, s.saveChanges)
		s.saveChanges = nil
	}
	if save := m.takeSave(s); save != nil {
		saves = append(saves, save)
	}
	// Where the server ends, it is replaced and not removed.
	if state := s.state; state != nil && m.ending.Err() == nil {
		s.state = nil
		saves = append(saves, func() { m.removeState(s.key, state) })
	}
	return saves
}

// dequeue takes a ticket out of its queue.
func (m *Manager) dequeue(s *session, turn chan struct{}) {
	at := slices.Index(s.queue, turn)
	s.queue = slices.Delete(s.queue, at, at+1)
	if at == 0 {
		m.advance(s)
	}
}

// advance is called when the call at the head of the queue has ended. It ends
// the session if its sandbox died or its lifetime is over; then it wakes the
// next call or starts the idle timer.
func (m *Manager) advance(s *session) {
	s.used = time.Now()
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

// endIfOver ends a session whose sandboxes died or whose lifetime is over, and drops
// sandboxes that died from one that goes on.
func (m *Manager) endIfOver(s *session) {
	living := 0
	for _, member := range s.members {
		if !isClosed(member.Done()) {
			living++
		}
	}
	switch {
	case len(s.members) == 0:
	case living == 0:
		m.end(s, call.Restart{Cause: call.Died})
		return
	case living < len(s.members):
		for name, member := range s.members {
			if isClosed(member.Done()) {
				member.closeChanges()
				delete(s.members, name)
				s.died[name] = true
				m.count(s.key.Principal, -1)
			}
		}
	}
	switch {
	case len(s.members) == 0:
	case time.Since(s.started) >= m.Limits.Lifetime:
		m.end(s, call.Restart{Cause: call.Lifetime, After: m.Limits.Lifetime})
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

// startTimer ends a session that nobody uses when its idle time or its
// lifetime is over.
func (m *Manager) startTimer(s *session) {
	wait, why := m.Limits.Idle, call.Restart{Cause: call.Idle, After: m.Limits.Idle}
	if left := time.Until(s.started.Add(m.Limits.Lifetime)); left < wait {
		wait, why = left, call.Restart{Cause: call.Lifetime, After: m.Limits.Lifetime}
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		// A call may have come, and even gone, while the timer fired.
		switch {
		case s.timer != timer:
		case why.Cause == call.Idle && m.fallAsleep(s):
		default:
			m.end(s, why)
			delete(m.sessions, s.key)
		}
	})
	s.timer = timer
}

func (s *session) stopTimer() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

// end takes the sandboxes from a session and remembers why.
func (m *Manager) end(s *session, why call.Restart) {
	m.Log.Info("session ended", "session", s.key.ID, "env", s.environments(), "why", why.Cause, "lived_ms", time.Since(s.started).Milliseconds())
	m.dismiss(s)
	m.remember(s.key, why)
	switch {
	case s.state == nil:
	case why.Cause == call.Closed:
		s.state.Close() // nobody has heard of what was later
		s.state = nil
	default:
		go m.removeState(s.key, s.state)
		s.state = nil
	}
}

// dismiss takes the sandboxes from a session.
func (m *Manager) dismiss(s *session) {
	s.stopTimer()
	for _, member := range s.members {
		member.Kill()
		member.closeChanges()
		m.count(s.key.Principal, -1)
	}
	clear(s.members)
	clear(s.died)
	s.closeWorkspace()
	s.kept.close()
}

func (m *Manager) remember(key call.Key, why call.Restart) {
	if _, known := m.ended[key]; !known {
		m.order = append(m.order, key)
	}
	m.ended[key] = why
	for len(m.order) > maxEnded {
		delete(m.ended, m.order[0])
		m.order = m.order[1:]
	}
}

// Remember takes sessions of a server that has ended, so that their next calls are told.
func (m *Manager) Remember(keys []call.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		m.remember(key, call.Restart{Cause: call.Replaced})
	}
}

// Ended returns the sessions whose next calls would be told that they ended with the
// server, or with an earlier one. It follows [Manager.Close].
func (m *Manager) Ended() []call.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.order), func(key call.Key) bool {
		cause := m.ended[key].Cause
		return cause != call.Closed && cause != call.Replaced
	})
}

// closeWorkspace ends the workspace of a session, if there is one.
func (s *session) closeWorkspace() {
	if s.workspace != nil {
		s.workspace.Close()
		s.workspace = nil
	}
}

// takeRestart returns why a session, or its sandbox of an environment, ended before;
// once, and nil where it did not.
func (m *Manager) takeRestart(s *session, env string) *call.Restart {
	if s.died[env] {
		delete(s.died, env)
		return &call.Restart{Cause: call.Died, FilesKept: true}
	}
	why, known := m.ended[s.key]
	if !known {
		return nil
	}
	delete(m.ended, s.key)
	m.order = slices.DeleteFunc(m.order, func(other call.Key) bool { return other == s.key })
	return &why
}

// sandboxEnded ends a session whose last sandbox died while nobody used it; a call
// that uses it finds out by itself.
func (m *Manager) sandboxEnded(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The sandbox that ended may be an earlier one.
	if len(s.members) == 0 || len(s.queue) > 0 {
		return
	}
	m.endIfOver(s)
	if len(s.members) == 0 {
		delete(m.sessions, s.key)
	}
}

// Execute implements [call.Executor]. It waits for the turn of the call's
// ticket, and starts the session's sandbox where there is none.
func (m *Manager) Execute(ctx context.Context, c call.Call) (call.Result, error) {
	if c.Session == "" {
		return m.Once.Execute(ctx, c)
	}
	ticket := c.Ticket
	if ticket == nil {
		ticket = m.Enqueue(c.Key())
		defer ticket.Release()
	}
	if m.sleeps(c.Env) {
		// What nobody waits for any more is interrupted, so that the session can sleep.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(m.ending, cancel)()
	}
	s, err := m.wait(ctx, ticket)
	if err != nil {
		return call.Result{}, err
	}
	box, began, err := m.lease(ctx, s, c)
	if err != nil {
		return call.Result{}, err
	}
	arrived := time.Now()
	result, err := execute(ctx, box, c, sandbox.Request{Grace: sessionGrace, Keep: true, Shared: m.Workspaces != nil, Track: m.Files != nil})
	began.Result = result
	began.FilesKept = err != nil && m.filesKept(s, c.Env.Name)
	if m.Files != nil {
		m.executed(s, box, &began, err)
	}
	m.findChanges(s, box, &began, arrived)
	return began, err
}

// filesKept reports whether the files of a session are there without its sandbox of
// an environment.
func (m *Manager) filesKept(s *session, env string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, member := range s.members {
		if name != env && !isClosed(member.Done()) {
			return true
		}
	}
	return false
}

// wait waits for a ticket's turn, the call's end or the Manager's. A call that
// was cancelled while it waited does not run, even if its turn came too.
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

// lease returns the sandbox of a session whose turn the caller has, so that
// nobody else starts one. The result says how a sandbox that was started began.
func (m *Manager) lease(ctx context.Context, s *session, c call.Call) (sandbox.Sandbox, call.Result, error) {
	m.mu.Lock()
	m.endIfOver(s)
	env := c.Env.Name
	if c.From != "" && len(s.members) > 0 {
		defer m.mu.Unlock()
		return nil, call.Result{}, &call.BranchError{From: c.From, Session: c.Session, Reason: call.Existing}
	}
	if member := s.members[env]; member != nil {
		s.last = env
		defer m.mu.Unlock()
		return member, call.Result{}, nil
	}
	// A call may have been accepted before an earlier one made the session's
	// environment larger.
	former := s.related(c.Env)
	if former != nil && former.env.Added().Includes(c.Env.Added()) {
		s.last = former.env.Name
		defer m.mu.Unlock()
		return former, call.Result{}, nil
	}
	if former != nil && !c.Env.Added().Includes(former.env.Added()) || len(s.members) > 0 && former == nil && s.workspace == nil {
		defer m.mu.Unlock()
		return nil, call.Result{}, &call.OtherEnvError{Session: c.Session, Has: s.environments(), Wanted: env}
	}
	if former != nil && former.changes != nil && !former.changes.IsEmpty() {
		// These are in a layer of the sandbox that it has.
		defer m.mu.Unlock()
		return nil, call.Result{}, &call.OtherEnvError{Session: c.Session, Has: former.env.Name, Wanted: env, Changed: true}
	}
	if most, isFull := m.makeSpace(ctx, c.Principal); isFull && former == nil {
		defer m.mu.Unlock()
		return nil, call.Result{}, m.full(c.Principal, most)
	}
	m.count(c.Principal, 1)
	m.mu.Unlock()

	started := time.Now()
	var box sandbox.Sandbox
	var began call.Result
	var err error
	switch {
	case former != nil:
		box, err = m.startLarger(ctx, s, former, c)
	case c.From != "":
		began.BranchedFrom = c.From
		box, err = m.startBranch(ctx, s, c)
	default:
		box, began, err = m.startWithFiles(ctx, s, c)
	}
	if err == nil {
		defer box.OnEnd(func() { m.sandboxEnded(s) })
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	if isClosed(m.closed) {
		if err == nil {
			box.Kill()
		}
		err = sandbox.ErrClosed
	}
	if err != nil {
		m.count(c.Principal, -1)
		// Nobody has the workspace of a session that did not begin, or whose other
		// sandboxes died meanwhile.
		if m.endIfOver(s); len(s.members) == 0 {
			s.closeWorkspace()
			s.kept.close()
		}
		return nil, call.Result{}, err
	}
	if len(s.members) == 0 {
		s.started = started
	}
	one := &member{box, c.Env, m.recordChanges(c, box)}
	if former != nil {
		// What it had unsaved is in the other one now.
		if s.kept.unsaved == sandbox.Sandbox(former) {
			s.kept.unsaved = one
		}
		delete(s.members, former.env.Name)
		m.count(c.Principal, -1)
		former.Kill()
		former.closeChanges()
		began.Grown = true
	}
	s.members[env] = one
	s.last, s.used = env, time.Now()
	m.Log.Info("session started", "session", c.Session, "env", env, "ms", time.Since(started).Milliseconds())
	began.Restart = m.takeRestart(s, env)
	return one, began, nil
}

// start starts a sandbox for a session whose turn the caller has, and before it the
// workspace of one that begins.
func (m *Manager) start(ctx context.Context, s *session, c call.Call) (sandbox.Sandbox, error) {
	spec := m.Spec(c)
	spec.Upper = m.Changes != nil
	m.mu.Lock()
	spec.Workspace = s.workspace
	m.mu.Unlock()
	if m.Workspaces != nil && spec.Workspace == nil {
		var err error
		if spec.Workspace, err = m.Workspaces.Workspace(ctx, spec); err != nil {
			return nil, startError(ctx, spec, err)
		}
		m.mu.Lock()
		s.workspace = spec.Workspace
		m.mu.Unlock()
	}
	return start(ctx, m.Starter, spec)
}

// copyTimeout bounds the copy of a session's files from one sandbox to another.
const copyTimeout = time.Minute

// startLarger starts a sandbox in place of a session's own one, of the same environment
// with further packages, and with the session's files. After an error the session has
// the one that it had.
func (m *Manager) startLarger(ctx context.Context, s *session, former *member, c call.Call) (sandbox.Sandbox, error) {
	box, err := m.start(ctx, s, c)
	if err != nil || s.workspace != nil {
		return box, err // on one workspace, the files are there
	}
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	_, err = former.SaveFiles(ctx, true, func(part []byte) error { return box.RestoreFiles(ctx, part, false) })
	if err == nil {
		err = box.RestoreFiles(ctx, nil, true)
	}
	if err != nil {
		box.Kill()
		return nil, startError(ctx, m.Spec(c), fmt.Errorf("copy the files of the session: %w", err))
	}
	return box, nil
}

// count adds n to the sandboxes of a principal's sessions.
func (m *Manager) count(principal string, n int) {
	m.live += n
	if m.liveEach[principal] += n; m.liveEach[principal] == 0 {
		delete(m.liveEach, principal)
	}
}

// isFull reports whether a principal may have no further sandbox, and how many it, or
// all together, may have.
func (m *Manager) isFull(principal string) (most int, isFull bool) {
	if m.Limits.MaxEach != nil {
		if most = m.Limits.MaxEach(principal); m.liveEach[principal] >= most {
			return most, true
		}
	}
	return m.Limits.Max, m.live >= m.Limits.Max
}

// full is the error of a session beyond a bound.
func (m *Manager) full(principal string, most int) error {
	full := &call.FullError{Max: most}
	for key, s := range m.sessions {
		if len(s.members) > 0 && len(s.queue) == 0 && key.Principal == principal {
			full.Idle = append(full.Idle, call.IdleSession{ID: key.ID, Env: s.environments(), Idle: time.Since(s.used)})
		}
	}
	slices.SortFunc(full.Idle, func(a, b call.IdleSession) int { return int(b.Idle - a.Idle) })
	return full
}

// Sandbox returns the sandbox of a live session when the ticket's turn has
// come. It is the caller's until the ticket is released. Sandbox starts no
// session: without one the error is a [*call.NoSessionError].
func (m *Manager) Sandbox(ctx context.Context, ticket *call.Ticket) (sandbox.Sandbox, error) {
	s, err := m.wait(ctx, ticket)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.endIfOver(s)
	box := s.reader()
	m.mu.Unlock()
	if box == nil {
		return nil, &call.NoSessionError{Session: ticket.Key.ID}
	}
	return box, nil
}

// reader returns the sandbox of a session through which its files are read: the one
// of the last call, or another; nil where there is none.
func (s *session) reader() sandbox.Sandbox {
	if last := s.members[s.last]; last != nil {
		return last
	}
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		return s.members[name]
	}
	return nil
}

// Environment returns what the sandbox of a live session was started from, by the
// name of its environment. It goes on with that when the environment has been
// replaced, or is not offered any more.
func (m *Manager) Environment(key call.Key, name string) (registry.Environment, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[key]; s != nil && s.members[name] != nil {
		return s.members[name].env, true
	}
	return registry.Environment{}, false
}

// Added returns which packages calls have added to an environment in a live session;
// false where the session has no sandbox of that environment.
func (m *Manager) Added(key call.Key, base string) (registry.Derived, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[key]; s != nil {
		for _, member := range s.members {
			if added := member.env.Added(); added.Base == base {
				return added, true
			}
		}
	}
	return registry.Derived{}, false
}

// Close ends every session, after what answered calls wrote is saved; later calls fail
// with [sandbox.ErrClosed].
func (m *Manager) Close() {
	m.mu.Lock()
	if isClosed(m.closed) {
		m.mu.Unlock()
		return
	}
	close(m.closed)
	m.stop()
	m.mu.Unlock()
	sandbox.WaitWithin(&m.saves, lastSavesTimeout)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sessions {
		if len(s.members) > 0 {
			m.end(s, call.Restart{Cause: call.Closed})
		}
	}
}

func start(ctx context.Context, starter sandbox.Starter, spec sandbox.Spec) (sandbox.Sandbox, error) {
	box, err := starter.Start(ctx, spec)
	if err != nil {
		return nil, startError(ctx, spec, err)
	}
	return box, nil
}

// startError returns the error of a call whose sandbox did not start. The end of the
// call or of the server is no fault of the environment.
func startError(ctx context.Context, spec sandbox.Spec, err error) error {
	if ctx.Err() != nil || errors.Is(err, sandbox.ErrClosed) {
		return err
	}
	return &call.StartError{Env: spec.Name, Err: err}
}

// execute runs a call in a sandbox, in the way that a request says, and reads the images that it wrote.
func execute(ctx context.Context, box sandbox.Sandbox, c call.Call, request sandbox.Request) (sandbox.Result, error) {
	request.Code, request.Timeout, request.Progress = c.Code, c.TimeLimit(), c.Progress
	result, err := box.Execute(ctx, request)
	if err != nil {
		return result, err
	}
	// What was written before a cancellation is shown as well, so this does
	// not end with the call.
	readImages(context.WithoutCancel(ctx), box, result.Files)
	return result, nil
}

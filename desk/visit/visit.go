// Package visit lets the user into the sessions of a running server: a terminal in the sandbox that
// the model uses, its interpreter between two calls, and its ports, if the operator allows that.
//
// It is a part of sessions, because the model is told which files the user changed, and on which
// ports its code listens. Sessions of principals over HTTP are theirs alone: nobody is let in.
package visit

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

const (
	// maxNamed bounds the files that the model is told of, and maxTold those that are remembered
	// for that.
	maxNamed = 5
	maxTold  = 1000
	// maxVisits bounds the visits of a session at a time: less than frame.MaxStreams.
	maxVisits = 32
)

// Visits are the visits to the sessions of a server.
type Visits struct {
	// Forward says that the operator allows connections to ports of sandboxes.
	Forward bool

	sessions *session.Manager // set before the first visit

	mu   sync.Mutex
	each map[call.Key]*visited
}

// visited is a session that the user is in, or was in since its last call.
type visited struct {
	inside int // visits; under mu of Visits
	// mu is held while the sandbox looks, which may take time.
	mu sync.Mutex
	// box looks for changes, or is nil: any sandbox of the session sees its files.
	box sandbox.Visitable
	// files are what the user changed, and the model has not been told yet, and more how many
	// there were beyond them.
	files []string
	more  int
}

// New returns a Visits. SetSessions is called before the first visit.
func New(forward bool) *Visits {
	return &Visits{Forward: forward, each: map[call.Key]*visited{}}
}

// SetSessions sets the sessions.
func (v *Visits) SetSessions(m *session.Manager) { v.sessions = m }

// enter begins a visit in which the user may change files. The caller calls leave.
func (v *Visits) enter(ctx context.Context, key call.Key, box sandbox.Visitable) (leave func(), ok bool) {
	v.mu.Lock()
	s := v.each[key]
	if s == nil {
		s = &visited{}
		v.each[key] = s
	}
	if s.inside == maxVisits {
		v.mu.Unlock()
		return nil, false
	}
	s.inside++
	v.mu.Unlock()
	s.mu.Lock()
	if s.box == nil {
		s.box = box
		_, _, _ = box.Look(ctx) // what is there now
	}
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.look(context.WithoutCancel(ctx))
		s.mu.Unlock()
		v.mu.Lock()
		s.inside--
		v.mu.Unlock()
		v.forget(key, s)
	}, true
}

// look adds the files that the user has changed since the last look.
func (s *visited) look(ctx context.Context) {
	if s.box == nil {
		return
	}
	paths, count, err := s.box.Look(ctx)
	if err != nil {
		return // the sandbox has ended, or there are too many files
	}
	for _, name := range paths {
		if !slices.Contains(s.files, name) && len(s.files) < maxTold && !isHistory(name) {
			s.files = append(s.files, name)
		}
	}
	s.more += count - len(paths)
}

// isHistory reports whether a file is one in which a shell or an interpreter keeps what was typed.
func isHistory(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, ".") && strings.HasSuffix(base, "_history")
}

// forget forgets a session without visits of which there is nothing to tell.
func (v *Visits) forget(key call.Key, s *visited) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if s.inside > 0 || !s.mu.TryLock() { // whoever has it forgets it
		return
	}
	defer s.mu.Unlock()
	s.box = nil
	if len(s.files)+s.more == 0 && v.each[key] == s {
		delete(v.each, key)
	}
}

// of returns the visits of a session, or nil.
func (v *Visits) of(key call.Key) *visited {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.each[key]
}

// before returns what a call is to be told of the user's changes before it.
func (v *Visits) before(ctx context.Context, key call.Key) (note *call.Visited) {
	s := v.of(key)
	if s == nil {
		return nil
	}
	s.mu.Lock()
	s.look(ctx)
	if len(s.files)+s.more > 0 {
		note = &call.Visited{Files: s.files[:min(len(s.files), maxNamed)], Count: len(s.files) + s.more}
		s.files, s.more = nil, 0
	}
	s.mu.Unlock()
	v.forget(key, s)
	return note
}

// after takes what a call changed for the model's own.
func (v *Visits) after(ctx context.Context, key call.Key) {
	s := v.of(key)
	if s == nil {
		return
	}
	s.mu.Lock()
	if s.box != nil {
		_, _, _ = s.box.Look(ctx)
	}
	s.mu.Unlock()
	v.forget(key, s)
}

// Start implements [session.Part].
func (v *Visits) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	one, err := next(ctx, s)
	if err != nil {
		return nil, err
	}
	m := &member{Member: one, visits: v, key: s.Call.Key()}
	if v.Forward && m.key.Principal == "" {
		if box, ok := one.Sandbox().(sandbox.Visitable); ok {
			m.ports, _, _ = box.Examine(ctx) // such as a proxy's
		}
	}
	return m, nil
}

// member is a sandbox of a session that can be visited.
type member struct {
	session.Member
	visits *Visits
	key    call.Key
	ports  []uint16 // that the model knows of
}

// byUser marks the context of a call that the user makes.
type byUser struct{}

// Execute implements [session.Member].
func (m *member) Execute(ctx context.Context, c call.Call, request sandbox.Request) (call.Result, error) {
	if ctx.Value(byUser{}) != nil {
		return m.Member.Execute(ctx, c, request)
	}
	note := m.visits.before(ctx, m.key)
	result, err := m.Member.Execute(ctx, c, request)
	m.visits.after(context.WithoutCancel(ctx), m.key)
	if note != nil {
		result.Notes = append(result.Notes, *note)
	}
	if m.visits.Forward && m.key.Principal == "" && err == nil {
		if ports := m.newPorts(ctx); len(ports) > 0 {
			result.Notes = append(result.Notes, call.Listening{Ports: ports})
		}
	}
	return result, err
}

// newPorts returns the ports on which code listens since the last call.
func (m *member) newPorts(ctx context.Context) (found []uint16) {
	box, ok := m.Sandbox().(sandbox.Visitable)
	if !ok {
		return nil
	}
	ports, _, err := box.Examine(ctx)
	if err != nil {
		return nil
	}
	for _, port := range ports {
		if !slices.Contains(m.ports, port) {
			found = append(found, port)
		}
	}
	m.ports = ports
	return found
}

// Package visit lets the user into the sessions of a running server: a terminal in the sandbox that
// the model uses, commands of an agent's own shell, and its ports, if the operator allows that.
//
// It is a part of sessions, because the model is told which files the user changed, and on which
// ports its code listens. Sessions of principals over HTTP are theirs alone: nobody is let in.
package visit

import (
	"context"
	"crypto/rand"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

const (
	// maxNamed bounds the files that the model is told of, and maxTold the files that are remembered
	// for that.
	maxNamed = 5
	maxTold  = 1000
	// maxVisits bounds the visits of a session at a time: less than frame.MaxStreams.
	maxVisits = 32
)

// Options say what visits reach.
type Options struct {
	// Forward says that the operator allows connections to ports of sandboxes.
	Forward bool
	// Project is what every sandbox shows. A session can begin in each of Environments.
	Project      sandbox.Project
	Environments func() *registry.Snapshot
	// Ask returns the answer to the questions of programs, as for the code of a call. It may be nil.
	Ask func(call.Call) sandbox.Ask
}

// Visits are the visits to the sessions of a server.
type Visits struct {
	Options

	lingers  sync.Once        // of the server's end
	sessions *session.Manager // set before the first visit

	mu   sync.Mutex
	each map[call.Key]*visited
}

// visited is a session that the user can be in.
type visited struct {
	looking sync.Mutex // held while a sandbox looks, which may take time
	// mark is random, so that a text made before cannot have it.
	mark string

	// mu of Visits guards these.
	inside  int // visits
	members int // sandboxes
	// box looks for changes while the user is in the session: any of its sandboxes sees its files.
	box sandbox.Visitable
	// files are what the user changed, and the model has not been told yet, and more how many
	// there were beyond them.
	files []string
	more  int
}

// New returns a Visits. SetSessions is called before the first visit.
func New(o Options) *Visits {
	return &Visits{Options: o, each: map[call.Key]*visited{}}
}

// SetSessions sets the sessions.
func (v *Visits) SetSessions(m *session.Manager) { v.sessions = m }

// session returns a session, which [Visits.forget] forgets.
func (v *Visits) session(key call.Key) *visited {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.each[key] == nil {
		v.each[key] = &visited{mark: strings.ToLower(rand.Text()[:8])}
	}
	return v.each[key]
}

// enter begins a visit in which the user may change files. The caller calls leave.
func (v *Visits) enter(ctx context.Context, key call.Key, box sandbox.Visitable) (leave func(), ok bool) {
	s := v.session(key)
	v.mu.Lock()
	if s.inside == maxVisits {
		v.mu.Unlock()
		return nil, false
	}
	s.inside++
	v.mu.Unlock()
	v.watch(ctx, s, box)
	return func() {
		v.look(context.WithoutCancel(ctx), s, true)
		v.mu.Lock()
		defer v.mu.Unlock()
		if s.inside--; s.inside == 0 {
			s.box = nil
		}
		v.forget(key, s)
	}, true
}

// watch has a sandbox look for changes from now on, if the user is in its session and no other one
// looks.
func (v *Visits) watch(ctx context.Context, s *visited, box sandbox.Visitable) {
	v.mu.Lock()
	begins := s.inside > 0 && s.box == nil
	if begins {
		s.box = box
	}
	v.mu.Unlock()
	if begins {
		v.look(ctx, s, false) // what is there now
	}
}

// look finds the files that have changed since the last look. If they are the user's, the model is
// told of them later.
func (v *Visits) look(ctx context.Context, s *visited, areUsers bool) {
	s.looking.Lock()
	defer s.looking.Unlock()
	v.mu.Lock()
	box := s.box
	v.mu.Unlock()
	if box == nil {
		return
	}
	paths, count, err := box.Look(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	// After an error, the sandbox has ended, or there are too many files.
	if err != nil || box != s.box || !areUsers {
		return
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

// forget forgets a session that is not live, without visits, of which there is nothing to tell. mu is
// locked.
func (v *Visits) forget(key call.Key, s *visited) {
	if s.inside == 0 && s.members == 0 && len(s.files)+s.more == 0 {
		delete(v.each, key)
	}
}

// Start implements [session.Part].
func (v *Visits) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	m := &member{visits: v, key: s.Call.Key()}
	m.visited = v.session(m.key)
	v.mu.Lock()
	m.visited.members++
	v.mu.Unlock()
	v.look(ctx, m.visited, true) // for the last time, if the sandbox replaces the one that looks
	var err error
	if m.Member, err = next(ctx, s); err != nil {
		m.left(call.Suspended) // nothing of it has ended
		return nil, err
	}
	m.newPorts(ctx) // such as a proxy's
	return m, nil
}

// member is a sandbox of a session that can be visited.
type member struct {
	session.Member
	visits  *Visits
	key     call.Key
	visited *visited
	ports   []uint16 // that the model knows of
}

// byUser marks the context of a call that no model makes.
type byUser struct{}

// Call implements [session.Member].
func (m *member) Call(ctx context.Context, c call.Call, request sandbox.Request) (call.Result, error) {
	if ctx.Value(byUser{}) != nil {
		return m.Member.Call(ctx, c, request)
	}
	v, s := m.visits, m.visited
	v.look(ctx, s, true)
	v.watch(ctx, s, m.box())
	v.mu.Lock()
	files, count := s.files, len(s.files)+s.more
	s.files, s.more = nil, 0
	v.mu.Unlock()
	result, err := m.Member.Call(ctx, c, request)
	v.look(context.WithoutCancel(ctx), s, false) // these changes are the model's
	if count > 0 {
		result.Notes = append(result.Notes, call.Visited{Files: files[:min(len(files), maxNamed)], Count: count})
	}
	if ports := m.newPorts(ctx); len(ports) > 0 {
		result.Notes = append(result.Notes, call.Listening{Ports: ports})
	}
	return result, err
}

// End implements [session.Member].
func (m *member) End(why call.Cause) {
	m.Member.End(why)
	m.left(why)
}

// left takes the sandbox from its session. The files of a session end with its last sandbox, unless
// it is suspended.
func (m *member) left(why call.Cause) {
	v, s := m.visits, m.visited
	v.mu.Lock()
	defer v.mu.Unlock()
	if m.Member != nil && s.box == m.box() {
		s.box = nil
	}
	if s.members--; s.members == 0 && why != call.Suspended {
		s.files, s.more = nil, 0
	}
	v.forget(m.key, s)
}

// box is the sandbox, or nil if it cannot be visited.
func (m *member) box() sandbox.Visitable {
	box, _ := m.Sandbox().(sandbox.Visitable)
	return box
}

// newPorts returns the ports on which code listens since the last call, if the user can reach them.
func (m *member) newPorts(ctx context.Context) (found []uint16) {
	box := m.box()
	if box == nil || !m.visits.Forward || m.key.Principal != "" {
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

// Package live shows the operator what a server does: its principals, sessions, running calls
// and recent calls. A command gets it as JSON, and a browser as a page.
//
// It promises that its memory is bounded, that it delays no call, and that viewers cannot change
// the server.
package live

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/status"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

const (
	// maxRecent is how many ended calls are kept, maxRunning how many
	// that run are shown, and maxPrincipals how many principals are counted by
	// themselves; all others are otherPrincipals together.
	maxRecent       = 100
	maxRunning      = 200
	maxPrincipals   = 200
	otherPrincipals = "(others)"
	// maxText bounds each text of a call, maxImage each image, and maxImages those of all
	// calls together, in bytes.
	maxText   = 16 << 10
	maxName   = 128
	maxImage  = 2 << 20
	maxImages = 32 << 20
)

// Server is the state of a server. It is an Observer of calls, and safe for
// concurrent use.
type Server struct {
	o       Options
	started time.Time

	mu         sync.Mutex
	next       uint64
	running    map[uint64]*status.Call
	recent     []*status.Call // the newest is the last
	images     int            // bytes of the images of recent
	principals map[string]*status.Principal
	viewers    map[chan *status.Call]bool
	sessions   func() []session.Live
}

// Options configure a Server.
type Options struct {
	Version string
	// Environments returns the names of the ready environments.
	Environments func() []string
	// Audit is nil if there is no audit log.
	Audit *audit.Log
	// Contents keeps the code and the output of calls for the page.
	Contents bool
}

// New returns a Server without sessions.
func New(o Options) *Server {
	return &Server{o: o, started: time.Now(), running: map[uint64]*status.Call{}, principals: map[string]*status.Principal{}, viewers: map[chan *status.Call]bool{}}
}

// SetSessions tells how to find the sessions that live.
func (s *Server) SetSessions(list func() []session.Live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = list
}

// Begin implements [call.Observer].
func (s *Server) Begin(c call.Call) (end func(call.Result, error)) {
	one := &status.Call{
		Principal: bounded.Head(c.Principal, maxName), Trace: bounded.Head(c.Trace, maxName),
		Env: bounded.Head(c.Env.Name, maxName), Session: bounded.Head(c.Session, maxName), Began: time.Now(),
	}
	if s.o.Contents {
		one.Code = cut(c.Code)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	one.Number = s.next
	s.running[one.Number] = one
	s.principal(one.Principal).Running++
	return func(result call.Result, err error) { s.end(*one, result, err) }
}

// end takes a copy of the call, because others may read the running call.
func (s *Server) end(one status.Call, result call.Result, err error) {
	one.Outcome, one.ExitCode, one.Took = call.Outcome(result, err), result.ExitCode, time.Since(one.Began)
	if err != nil {
		one.Reason = bounded.Head(err.Error(), 4*maxName)
	}
	size := 0
	if s.o.Contents {
		one.Stdout, one.Stderr = text(result.Stdout), text(result.Stderr)
		for _, file := range result.Files {
			if imageTypes[file.Type] && len(file.Content) > 0 && len(file.Content) <= maxImage && size+len(file.Content) <= maxImages/4 {
				one.Images = append(one.Images, status.Image{Path: bounded.Head(file.Path, maxName), Type: file.Type, Content: file.Content})
				size += len(file.Content)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, one.Number)
	p := s.principal(one.Principal)
	p.Running--
	p.Calls++
	p.Seconds += one.Took.Seconds()
	switch one.Outcome {
	case "ok":
	case "refused":
		p.Refused++
	default:
		p.Failed++
	}
	s.recent = append(s.recent, &one)
	s.images += size
	for len(s.recent) > maxRecent || s.images > maxImages {
		for _, image := range s.recent[0].Images {
			s.images -= len(image.Content)
		}
		s.recent = slices.Delete(s.recent, 0, 1)
	}
	for viewer := range s.viewers {
		select {
		case viewer <- &one:
		default: // it reads too slowly, and misses this one
		}
	}
}

// imageTypes are the types without scripts. SVG has scripts.
var imageTypes = map[string]bool{"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true}

func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return bounded.Head(text, maxText) + "\n[…]"
}

func text(t sandbox.Text) string {
	if t.Cut == 0 {
		return cut(t.Head)
	}
	return bounded.Head(t.Head, maxText/2) + "\n[…]\n" + sandbox.LastBytes(t.Tail, maxText/2)
}

// principal returns the counts of a principal; mu is locked.
func (s *Server) principal(name string) *status.Principal {
	p := s.principals[name]
	if p == nil && len(s.principals) >= maxPrincipals {
		name = otherPrincipals
		p = s.principals[name]
	}
	if p == nil {
		p = &status.Principal{Name: name}
		s.principals[name] = p
	}
	return p
}

// Sessions returns the live sessions.
func (s *Server) Sessions() []session.Live {
	s.mu.Lock()
	list := s.sessions
	s.mu.Unlock()
	if list == nil {
		return nil
	}
	return list()
}

// Now returns a snapshot.
func (s *Server) Now() status.Snapshot {
	now := time.Now()
	result := status.Snapshot{Version: s.o.Version, PID: pid, Time: now, Uptime: now.Sub(s.started).Seconds(), Memory: memory()}
	if s.o.Environments != nil {
		result.Environments = s.o.Environments()
	}
	if s.o.Audit != nil {
		state := s.o.Audit.State()
		result.Audit = &state
	}
	sessions := s.Sessions()
	s.mu.Lock()
	defer s.mu.Unlock()
	principals := make(map[string]status.Principal, len(s.principals))
	for name, p := range s.principals {
		principals[name] = *p
	}
	for _, l := range sessions {
		result.Sessions = append(result.Sessions, status.Session{
			Principal: l.Key.Principal, ID: l.Key.ID, Environments: l.Environments, Calls: l.Calls,
			Age: now.Sub(l.Started).Seconds(), Idle: now.Sub(l.Used).Seconds(), MemoryMB: l.MemoryMB,
		})
		name := s.principal(l.Key.Principal).Name
		p := principals[name]
		p.Name = name
		p.Sessions++
		p.MemoryMB += l.MemoryMB
		principals[name] = p
	}
	result.Principals = slices.SortedFunc(maps.Values(principals), func(a, b status.Principal) int {
		return cmp.Or(b.Running-a.Running, cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name))
	})
	for _, c := range s.running {
		one := *c
		one.Took = now.Sub(one.Began)
		result.Running = append(result.Running, one)
	}
	slices.SortFunc(result.Running, func(a, b status.Call) int { return cmp.Compare(a.Number, b.Number) })
	result.Running = result.Running[:min(len(result.Running), maxRunning)]
	for _, c := range slices.Backward(s.recent) {
		result.Recent = append(result.Recent, *c)
	}
	return result
}

// find returns a call that has ended lately.
func (s *Server) find(number uint64) (status.Call, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.recent {
		if c.Number == number {
			return *c, true
		}
	}
	return status.Call{}, false
}

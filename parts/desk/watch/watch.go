// Package watch knows what a server does: its principals, sessions, running calls and recent calls.
// The user's commands ask for it by verbs of a desk.
//
// It promises that its memory is bounded, and that it delays no call.
package watch

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

const (
	// maxRecent is how many ended calls are kept, maxRunning how many
	// that run are shown, and maxPrincipals how many principals are counted by
	// themselves; all others are otherPrincipals together.
	maxRecent  = 100
	maxRunning = 200
	// maxCards is how many running calls are shown with their code and output.
	maxCards        = 32
	maxPrincipals   = 200
	otherPrincipals = "(others)"
	// maxText bounds each text of a call, maxImage each image, and maxImages the images of all
	// calls together, in bytes.
	maxText    = 16 << 10
	maxName    = 128
	maxRemarks = 16
	maxRemark  = 1 << 10
	maxFiles   = 32
	maxImage   = 2 << 20
	maxImages  = 16 << 20
)

// Server is the state of a server. It is an Observer of calls, and safe for
// concurrent use.
type Server struct {
	// Project is the folder that sandboxes show, or empty, and Audit is nil if there is no audit log.
	// Both are set before the first call.
	Project string
	Audit   func() Audit

	environments *registry.Registry
	started      time.Time

	mu         sync.Mutex
	next       uint64
	running    map[uint64]*running
	recent     []*Call // the newest is the last
	ended      uint64  // calls that have ended: the last of recent was the ended-th
	images     int     // bytes of the images of recent
	principals map[string]*Principal
	viewers    map[chan struct{}]bool
	sessions   func() []session.Live
}

// running is a call that runs.
type running struct {
	Call
	progress *sandbox.Progress
}

// New returns a Server without sessions.
func New(environments *registry.Registry) *Server {
	return &Server{environments: environments, started: time.Now(), running: map[uint64]*running{}, principals: map[string]*Principal{}, viewers: map[chan struct{}]bool{}}
}

// SetSessions tells how to find the sessions that live.
func (s *Server) SetSessions(list func() []session.Live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = list
}

// Begin implements [call.Observer].
func (s *Server) Begin(c call.Call) (end func(call.Result, error)) {
	one := Call{
		Principal: bounded.Head(c.Principal, maxName), Trace: bounded.Head(c.Trace, maxName),
		Env: bounded.Head(c.Env.Name, maxName), Session: bounded.Head(c.Session, maxName), Began: time.Now(),
		Code: cut(sandbox.Text{Head: c.Code}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	one.Number = s.next
	s.running[one.Number] = &running{one, c.Progress}
	s.principal(one.Principal).Running++
	return func(result call.Result, err error) { s.end(one, result, err) }
}

func (s *Server) end(one Call, result call.Result, err error) {
	one.Outcome, one.ExitCode, one.Took = call.Outcome(result, err), result.ExitCode, time.Since(one.Began)
	if err != nil && call.DiedDuring(err) == nil {
		one.Reason = bounded.Head(tool.Sentence(err), maxRemark)
	}
	for _, remark := range result.Remarks[:min(len(result.Remarks), maxRemarks)] {
		one.Remarks = append(one.Remarks, bounded.Head(strings.TrimSuffix(strings.TrimPrefix(remark, "["), "]"), maxRemark))
	}
	one.Tools = toolCalls(result)
	one.Stdout, one.Stderr, one.FileCount = cut(result.Stdout), cut(result.Stderr), len(result.Files)
	size := 0
	for _, file := range result.Files[:min(len(result.Files), maxFiles)] {
		kept := File{Path: bounded.Head(file.Path, maxName), Bytes: max(file.Size, int64(len(file.Content)))}
		if imageTypes[file.Type] && len(file.Content) > 0 && len(file.Content) <= maxImage && size+len(file.Content) <= maxImages/4 {
			kept.Type, kept.Content = file.Type, file.Content
			size += len(file.Content)
		}
		one.Files = append(one.Files, kept)
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
	s.ended++
	s.images += size
	for len(s.recent) > maxRecent || s.images > maxImages {
		for _, file := range s.recent[0].Files {
			s.images -= len(file.Content)
		}
		s.recent = slices.Delete(s.recent, 0, 1)
	}
	for viewer := range s.viewers {
		select {
		case viewer <- struct{}{}:
		default: // it will see this one too
		}
	}
}

// imageTypes are the types without scripts. SVG has scripts.
var imageTypes = map[string]bool{"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true}

// cut bounds a text, and keeps no more of it in memory.
func cut(t sandbox.Text) Text {
	if t.Cut == 0 && len(t.Head) <= maxText {
		return Text{Head: t.Head}
	}
	end := t.Tail
	if t.Cut == 0 {
		end = t.Head
	}
	short := Text{Head: strings.Clone(bounded.Head(t.Head, maxText/2)), Tail: strings.Clone(sandbox.LastBytes(end, maxText/2))}
	short.Cut = int64(t.Len()-len(short.Head)-len(short.Tail)) + t.Cut
	return short
}

// principal returns the counts of a principal; mu is locked.
func (s *Server) principal(name string) *Principal {
	p := s.principals[name]
	if p == nil && len(s.principals) >= maxPrincipals {
		name = otherPrincipals
		p = s.principals[name]
	}
	if p == nil {
		p = &Principal{Name: name}
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
func (s *Server) Now() Snapshot {
	now := time.Now()
	result := Snapshot{
		Version: command.Version(), PID: os.Getpid(), Time: now, Uptime: now.Sub(s.started).Seconds(), Memory: Measure(),
		Project: s.Project, Environments: s.environments.Now().Names(),
	}
	if s.Audit != nil {
		state := s.Audit()
		result.Audit = &state
	}
	sessions := s.Sessions()
	s.mu.Lock()
	defer s.mu.Unlock()
	principals := make(map[string]Principal, len(s.principals))
	for name, p := range s.principals {
		principals[name] = *p
	}
	for _, l := range sessions {
		result.Sessions = append(result.Sessions, Session{
			Principal: l.Key.Principal, ID: l.Key.ID, Environments: l.Environments, Calls: l.Calls, Waiting: l.Waiting,
			Age: now.Sub(l.Started).Seconds(), Idle: now.Sub(l.Used).Seconds(), MemoryMB: l.MemoryMB,
		})
		name := s.principal(l.Key.Principal).Name
		p := principals[name]
		p.Name = name
		p.Sessions++
		p.MemoryMB += l.MemoryMB
		principals[name] = p
	}
	result.Principals = slices.SortedFunc(maps.Values(principals), func(a, b Principal) int {
		return cmp.Or(b.Running-a.Running, cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name))
	})
	for _, c := range s.running {
		one := c.Call
		one.Took, one.Waits = now.Sub(one.Began), c.progress.Waits()
		result.Running = append(result.Running, one)
	}
	slices.SortFunc(result.Running, func(a, b Call) int { return cmp.Compare(a.Number, b.Number) })
	result.Running = result.Running[:min(len(result.Running), maxRunning)]
	for _, c := range slices.Backward(s.recent) {
		result.Recent = append(result.Recent, *c)
	}
	return result
}

// Find returns a call that has ended lately.
func (s *Server) Find(number uint64) (Call, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.recent {
		if c.Number == number {
			return *c, true
		}
	}
	return Call{}, false
}

// Cards returns the calls that run, as many as are shown with their output.
func (s *Server) Cards() (cards []Card) {
	s.mu.Lock()
	numbers := slices.Sorted(maps.Keys(s.running))
	var all []*running
	for _, number := range numbers[:min(len(numbers), maxCards)] {
		all = append(all, s.running[number])
	}
	s.mu.Unlock()
	for _, c := range all {
		one := cardOf(c.Call)
		stdout, stderr, line := c.progress.Now(maxText / 2)
		one.Stdout, one.Stderr, one.Waits = cut(stdout), cut(stderr), c.progress.Waits()
		// Output beyond the environment's bound comes as its newest line, now and then.
		shown := strings.Join(strings.Fields(stdout.Head+stdout.Tail+"\n"+stderr.Head+stderr.Tail), " ")
		if one.Waits == "" && !strings.Contains(shown, strings.Join(strings.Fields(line), " ")) {
			one.Line = line
		}
		cards = append(cards, one)
	}
	return cards
}

// EndedSince returns the calls that ended after the first n, as far as they are kept, and how many
// have ended in all.
func (s *Server) EndedSince(n uint64) (calls []Card, all uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := min(s.ended-n, uint64(len(s.recent)))
	for _, c := range s.recent[uint64(len(s.recent))-fresh:] {
		calls = append(calls, cardOf(*c))
	}
	return calls, s.ended
}

// Follow returns a channel that receives when calls have ended, until stop is called.
func (s *Server) Follow() (wake <-chan struct{}, stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	viewer := make(chan struct{}, 1)
	s.viewers[viewer] = true
	return viewer, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.viewers, viewer)
	}
}

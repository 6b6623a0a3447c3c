// Package live shows the operator what a server does: its principals, sessions, running calls
// and recent calls. A command gets it as JSON, and a browser as a page.
//
// It promises that its memory is bounded, that it delays no call, and that viewers cannot change
// the server: only a page with the key of [Answers] answers questions.
package live

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/status"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
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
	maxText    = 16 << 10
	maxName    = 128
	maxRemarks = 16
	maxRemark  = 1 << 10
	maxFiles   = 32
	maxImage   = 2 << 20
	maxImages  = 32 << 20
	// codeFailed is the outcome of a call whose code ended by itself with another status than 0.
	codeFailed = "failed"
)

// Server is the state of a server. It is an Observer of calls, and safe for
// concurrent use.
type Server struct {
	o       Options
	started time.Time

	mu         sync.Mutex
	next       uint64
	running    map[uint64]*running
	recent     []*status.Call // the newest is the last
	ended      uint64         // calls that have ended: the last of recent was the ended-th
	images     int            // bytes of the images of recent
	principals map[string]*status.Principal
	viewers    map[chan struct{}]bool
	sessions   func() []session.Live
}

// running is a call that runs.
type running struct {
	status.Call
	progress *sandbox.Progress
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
	return &Server{o: o, started: time.Now(), running: map[uint64]*running{}, principals: map[string]*status.Principal{}, viewers: map[chan struct{}]bool{}}
}

// SetSessions tells how to find the sessions that live.
func (s *Server) SetSessions(list func() []session.Live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = list
}

// Begin implements [call.Observer].
func (s *Server) Begin(c call.Call) (end func(call.Result, error)) {
	one := status.Call{
		Principal: bounded.Head(c.Principal, maxName), Trace: bounded.Head(c.Trace, maxName),
		Env: bounded.Head(c.Env.Name, maxName), Session: bounded.Head(c.Session, maxName), Began: time.Now(),
	}
	if s.o.Contents {
		one.Code = cut(sandbox.Text{Head: c.Code})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	one.Number = s.next
	s.running[one.Number] = &running{one, c.Progress}
	s.principal(one.Principal).Running++
	return func(result call.Result, err error) { s.end(one, result, err) }
}

func (s *Server) end(one status.Call, result call.Result, err error) {
	one.Outcome, one.ExitCode, one.Took = call.Outcome(result, err), result.ExitCode, time.Since(one.Began)
	if one.Outcome == frame.OutcomeOK && one.ExitCode != 0 {
		one.Outcome = codeFailed
	}
	if err != nil && call.DiedDuring(err) == nil {
		one.Reason = bounded.Head(tool.Sentence(err), maxRemark)
	}
	for _, remark := range result.Remarks[:min(len(result.Remarks), maxRemarks)] {
		one.Remarks = append(one.Remarks, bounded.Head(strings.TrimSuffix(strings.TrimPrefix(remark, "["), "]"), maxRemark))
	}
	one.Tools = toolCalls(result)
	size := 0
	if s.o.Contents {
		one.Stdout, one.Stderr, one.FileCount = cut(result.Stdout), cut(result.Stderr), len(result.Files)
		for _, file := range result.Files[:min(len(result.Files), maxFiles)] {
			kept := status.File{Path: bounded.Head(file.Path, maxName), Bytes: max(file.Size, int64(len(file.Content)))}
			if imageTypes[file.Type] && len(file.Content) > 0 && len(file.Content) <= maxImage && size+len(file.Content) <= maxImages/4 {
				kept.Type, kept.Content = file.Type, file.Content
				size += len(file.Content)
			}
			one.Files = append(one.Files, kept)
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

// cut bounds a text.
func cut(t sandbox.Text) status.Text {
	if t.Cut == 0 && len(t.Head) <= maxText {
		return status.Text{Head: t.Head}
	}
	end := t.Tail
	if t.Cut == 0 {
		end = t.Head
	}
	short := status.Text{Head: bounded.Head(t.Head, maxText/2), Tail: sandbox.LastBytes(end, maxText/2)}
	short.Cut = int64(t.Len()-len(short.Head)-len(short.Tail)) + t.Cut
	return short
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
	result.Principals = slices.SortedFunc(maps.Values(principals), func(a, b status.Principal) int {
		return cmp.Or(b.Running-a.Running, cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name))
	})
	for _, c := range s.running {
		one := c.Call
		one.Took, one.Waits = now.Sub(one.Began), c.progress.Waits()
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

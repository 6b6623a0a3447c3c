package changes

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes/layer"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

// Part saves what each session changes in a project that is an overlay, as a patch, after
// every call that changed something.
type Part struct {
	store   *Store
	project sandbox.Project

	mu      sync.Mutex
	records map[sandbox.Sandbox]*Record
}

// NewPart returns a Part that saves patches in a store.
func NewPart(store *Store, project sandbox.Project) *Part {
	return &Part{store: store, project: project, records: map[sandbox.Sandbox]*Record{}}
}

// Start implements [session.Part].
func (p *Part) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	if former := p.formerRecord(s); former != nil && !former.IsEmpty() {
		// The changes are in a layer of the sandbox that would be replaced.
		return nil, &call.OtherEnvError{Session: s.Call.Session, Has: former.head.Env, Wanted: s.Call.Env.Name, Changed: true}
	}
	s.Spec.Upper = true
	begun, err := next(ctx, s)
	if err != nil {
		return nil, err
	}
	record, err := p.begin(s.Call, begun.Sandbox())
	if err != nil {
		p.store.log.Warn("changes of a session in the project are not recorded", "session", s.Call.Session, "env", s.Call.Env.Name, "error", err)
		return begun, nil
	}
	m := &member{Member: begun, part: p, record: record}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records[m.Sandbox()] = record
	return m, nil
}

// formerRecord returns the record of the sandbox that is to be replaced, or nil.
func (p *Part) formerRecord(s *session.Start) *Record {
	if s.Former == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.records[s.Former.Sandbox()]
}

// begin begins to record what a sandbox changes.
func (p *Part) begin(c call.Call, box sandbox.Sandbox) (*Record, error) {
	var upper *os.File
	if layered, ok := box.(sandbox.Layered); ok {
		upper = layered.Upper()
	}
	if upper == nil {
		return nil, errors.New("its environment was built by an earlier version: build it again")
	}
	return p.store.Begin(Head{
		Key: Key{Principal: c.Principal, Session: c.Session}, Env: c.Env.Name,
		Project: p.project.Dir, Mount: p.project.Mount,
	}, upper)
}

// Read returns the patch of a session of this process. The error is a
// [*sandbox.TooLargeError] if it has more than limit bytes, and [ErrNone] if the session has
// changed nothing.
func (p *Part) Read(key call.Key, limit int64) ([]byte, error) {
	data, err := p.store.Read(Key{Principal: key.Principal, Session: key.ID}, limit)
	var large *layer.TooLargeError
	if errors.As(err, &large) {
		err = &sandbox.TooLargeError{Size: large.Size, Limit: large.Limit}
	}
	return data, err
}

// member is a sandbox whose changes are recorded.
type member struct {
	session.Member
	part   *Part
	record *Record
	// unsaved says that the patch may be out of date since the call that began at this
	// time.
	unsaved bool
	began   time.Time
}

// Execute implements [session.Member].
func (m *member) Execute(ctx context.Context, c call.Call, request sandbox.Request) (call.Result, error) {
	m.began = time.Now()
	result, err := m.Member.Execute(ctx, c, request)
	var summary *Summary
	var first bool
	summary, first, m.unsaved = m.record.Early()
	if summary != nil {
		result.Notes = append(result.Notes, note(summary, first))
	}
	return result, err
}

// note describes changes to the client.
func note(s *Summary, first bool) call.Changes {
	changes := call.Changes{
		Added: s.Added, Changed: s.Changed, Deleted: s.Deleted, Bytes: s.Bytes,
		LeftOutCount: s.LeftOutCount, Incomplete: s.Incomplete, First: first,
	}
	for _, left := range s.LeftOut {
		changes.LeftOut = append(changes.LeftOut, call.LeftOut(left))
	}
	return changes
}

// Settle implements [session.Member].
func (m *member) Settle(ending bool) []func() {
	todo := m.Member.Settle(ending)
	if m.unsaved {
		m.unsaved = false
		todo = append(todo, func() { m.record.Save(context.Background(), m.began) })
	}
	return todo
}

// End implements [session.Member].
func (m *member) End(why call.Cause) {
	m.Member.End(why)
	m.part.mu.Lock()
	defer m.part.mu.Unlock()
	delete(m.part.records, m.Sandbox())
	go m.record.Close() // waits for a save
}

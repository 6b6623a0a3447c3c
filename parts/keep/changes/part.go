package changes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/layer"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

// Part saves what each session changes in a project that is an overlay, as a patch, after
// every call that changed something.
type Part struct {
	store   *Store
	project sandbox.Project
	writing sync.Mutex // into the project

	mu      sync.Mutex
	records map[sandbox.Layered]*shared
}

// shared is the record of an overlay and the number of sandboxes that have it: one, or those
// of a session that share files.
type shared struct {
	*Record
	sandboxes int
}

// NewPart returns a Part that saves patches in a store.
func NewPart(store *Store, project sandbox.Project) *Part {
	return &Part{store: store, project: project, records: map[sandbox.Layered]*shared{}}
}

// Start implements [session.Part].
func (p *Part) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	overlay, isShared := s.Spec.Workspace.(sandbox.Layered)
	if former := p.formerRecord(s); former != nil && !former.IsEmpty() {
		// The changes are in a layer of the sandbox that would be replaced.
		return nil, &call.OtherEnvError{Session: s.Call.Session, Has: former.head.Env, Wanted: s.Call.Env.Name, Changed: true}
	}
	s.Spec.Upper = !isShared
	begun, err := next(ctx, s)
	if err != nil {
		return nil, err
	}
	if !isShared {
		overlay, _ = begun.Sandbox().(sandbox.Layered)
	}
	record, err := p.record(s.Call, overlay)
	if err != nil {
		p.store.log.Warn("changes of a session in the project are not recorded", "session", s.Call.Session, "env", s.Call.Env.Name, "error", err)
		return begun, nil
	}
	return &member{Member: begun, part: p, overlay: overlay, record: record}, nil
}

// formerRecord returns the record of the sandbox that is to be replaced, or nil if it has no
// overlay of its own.
func (p *Part) formerRecord(s *session.Start) *Record {
	if s.Former == nil {
		return nil
	}
	overlay, _ := s.Former.Sandbox().(sandbox.Layered)
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.records[overlay]; known != nil {
		return known.Record
	}
	return nil
}

// record begins to record what the sandboxes with an overlay change, or adds a sandbox to
// them. The sandboxes of one session start one after the other.
func (p *Part) record(c call.Call, overlay sandbox.Layered) (*Record, error) {
	p.mu.Lock()
	known := p.records[overlay]
	if known != nil {
		known.sandboxes++
		known.AddEnv(c.Env.Name)
	}
	p.mu.Unlock()
	if known != nil {
		return known.Record, nil
	}
	var upper *os.File
	if overlay != nil {
		upper = overlay.Upper()
	}
	if upper == nil {
		return nil, errors.New("its environment gives no layer of the project: build it again")
	}
	record, err := p.store.Begin(Head{
		Key: Key{Principal: c.Principal, Session: c.Session}, Env: c.Env.Name,
		Project: p.project.Dir, Mount: p.project.Mount,
	}, upper)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records[overlay] = &shared{record, 1}
	return record, nil
}

// leave takes a sandbox away from those with an overlay.
func (p *Part) leave(overlay sandbox.Layered) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.records[overlay]
	if known == nil {
		return
	}
	if known.sandboxes--; known.sandboxes == 0 {
		delete(p.records, overlay)
		go func() { // a save may last
			defer guard.Recover(nil)
			known.Close()
		}()
	}
}

// Read returns the patch of a session of this process. The error is a
// [*sandbox.TooLargeError] if it has more than limit bytes, and [ErrNone] if the session has
// made no change.
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
	part    *Part
	overlay sandbox.Layered
	record  *Record
	// unsaved says that the patch may be out of date since the call that began at this
	// time.
	unsaved bool
	began   time.Time
}

// Call implements [session.Member].
func (m *member) Call(ctx context.Context, c call.Call, request sandbox.Request) (call.Result, error) {
	m.began = time.Now()
	m.refresh()
	result, err := m.Member.Call(ctx, c, request)
	var summary *Summary
	var first bool
	summary, first, m.unsaved = m.record.Early()
	if problem := m.record.Problem(); problem != "" {
		result.Notes = append(result.Notes, call.Unsaved{Reason: problem, Changes: true})
	}
	if summary != nil {
		result.Notes = append(result.Notes, note(summary, first))
	}
	return result, err
}

// Beside implements [session.Member].
func (m *member) Beside() (done func(context.Context) []string) {
	began, inner := time.Now(), m.Member.Beside()
	m.refresh()
	return func(ctx context.Context) []string {
		remarks := inner(ctx)
		return append(remarks, m.save(ctx, began)...)
	}
}

// refresh has the sandbox see what others changed in the project.
func (m *member) refresh() {
	m.record.Release()
	m.overlay.Refresh()
}

// save saves the patch, and writes it into the project if the operator wants that. It returns what was
// not written, and why.
func (m *member) save(ctx context.Context, began time.Time) (remarks []string) {
	m.record.Save(ctx, began)
	if !m.part.project.Writes() {
		return nil
	}
	m.part.writing.Lock()
	defer m.part.writing.Unlock()
	left, err := m.record.Apply(ctx)
	if err != nil {
		m.part.store.log.Warn("what a session changed is not written into the project", "error", err)
		return []string{"nothing was written into the project: " + err.Error()}
	}
	for _, file := range left[:min(len(left), maxLeft)] {
		remarks = append(remarks, fmt.Sprintf("not written into the project: %s: %s", gitpatch.Quote(file.Path), file.Reason))
	}
	if more := len(left) - maxLeft; more > 0 {
		remarks = append(remarks, fmt.Sprintf("not written into the project: %d more", more))
	}
	return remarks
}

// maxLeft bounds the files that are named because they were not written.
const maxLeft = 5

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
		todo = append(todo, func() { m.save(context.Background(), m.began) })
	}
	return todo
}

// End implements [session.Member].
func (m *member) End(why call.Cause) {
	m.Member.End(why)
	m.part.leave(m.overlay)
}

package sessionfiles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

// saveTimeout bounds a save. The session's next call waits for it.
const saveTimeout = time.Minute

// allEnvs is the environment in the key of files that all environments of a session share.
const allEnvs = "*"

// NewPart returns the part that keeps the files of sessions in a store. It saves them after
// every call that changed some, and restores them when a session of that name begins again.
// Unless the environments of a session share its files, it must be of the same environment.
//
// If they share them, all sandboxes of a session have the same workspace and one entry in the
// store. The first sandbox restores the files, each of them saves all files after its own
// calls, and the last one to end releases the entry. Calls of a session run one at a time, so
// two saves never overlap. Each agent compares with its own last copy, so a call may save
// once more what another sandbox has saved, but never misses a change.
func NewPart(files *store.Store, log *slog.Logger) session.Part {
	return &part{store: files, log: log, inUse: map[store.Key]*kept{}, without: map[store.Key]int{}}
}

type part struct {
	store *store.Store
	log   *slog.Logger

	mu    sync.Mutex
	inUse map[store.Key]*kept
	// without counts the sandboxes of live sessions that keep no files, because another server has them.
	without map[store.Key]int
}

// kept are the files of a live session. The part's mutex protects all fields but files.
type kept struct {
	files *Files
	key   store.Key
	// users is how many sandboxes of the session there are: several if its environments
	// share the files, and two while one replaces another.
	users  int
	saving bool
	// problem says why the last save failed, or is empty.
	problem string
}

// Start implements [session.Part]. A part that resumes sessions comes before this one.
func (p *part) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	key := store.Key{Principal: s.Call.Principal, Session: s.Call.Session, Env: s.Call.Env.BaseName()}
	if s.Spec.Workspace != nil {
		key.Env = allEnvs
	}
	// The files of a branch end with it, even if it gets a larger sandbox.
	if s.Call.From != "" || s.Former != nil && !p.has(key) {
		return next(ctx, s)
	}
	if p.isWithout(key) {
		return p.startWithout(ctx, key, s, next)
	}
	k, isFirst, err := p.take(key)
	var inUse *store.InUseError
	if errors.As(err, &inUse) {
		holder := strings.TrimSuffix(fmt.Sprintf("process %d, %s", inUse.Holder.PID, inUse.Holder.About), ", ")
		s.Notes = append(s.Notes, call.Restored{UsedBy: holder})
		return p.startWithout(ctx, key, s, next)
	}
	if err != nil {
		return nil, err
	}
	begun, err := p.startWithFiles(ctx, k.files, isFirst, s, next)
	if err != nil {
		p.leave(k)
		return nil, err
	}
	return &member{Member: begun, part: p, kept: k}, nil
}

// startWithout starts a sandbox of a session whose files another server has. Clients often choose the
// same name, so that a refusal would meet many of them.
func (p *part) startWithout(ctx context.Context, key store.Key, s *session.Start, next session.StartFunc) (session.Member, error) {
	begun, err := next(ctx, s)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.without[key]++
	return &memberWithout{begun, p, key}, nil
}

func (p *part) isWithout(key store.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.without[key] > 0
}

// memberWithout is a sandbox of a session that keeps no files.
type memberWithout struct {
	session.Member
	part *part
	key  store.Key
}

// End implements [session.Member].
func (m *memberWithout) End(why call.Cause) {
	m.Member.End(why)
	m.part.mu.Lock()
	defer m.part.mu.Unlock()
	if m.part.without[m.key]--; m.part.without[m.key] == 0 {
		delete(m.part.without, m.key)
	}
}

// startWithFiles starts a sandbox and restores the files in it. The session's first sandbox has them
// already if it was resumed; a further one shares the workspace of the first, or replaces
// it with its files.
func (p *part) startWithFiles(ctx context.Context, files *Files, isFirst bool, s *session.Start, next session.StartFunc) (session.Member, error) {
	begun, err := next(ctx, s)
	if err != nil || s.Spec.From != "" || !isFirst {
		return begun, err
	}
	restored, err := restore(ctx, files, begun.Sandbox())
	if err != nil {
		if restored, begun, err = p.withoutFiles(ctx, files, begun, s, next, err); err != nil {
			return nil, err
		}
	}
	if restored != nil {
		s.Notes = append(s.Notes, *restored)
	}
	return begun, nil
}

// withoutFiles sets files aside that could not be restored in a sandbox, and returns a
// sandbox without them. It ends the first one if that may have some of the files.
func (p *part) withoutFiles(ctx context.Context, files *Files, begun session.Member, s *session.Start, next session.StartFunc, problem error) (*call.Restored, session.Member, error) {
	if ctx.Err() != nil {
		begun.End("")
		return nil, nil, problem
	}
	folder, err := files.SetAside()
	if err != nil {
		begun.End("")
		return nil, nil, err
	}
	p.log.Error("kept files of a session cannot be used and are set aside", "session", s.Call.Session, "env", s.Call.Env.Name, "error", problem, "folder", folder)
	var damaged *store.DamagedError // was found before anything was restored
	if !errors.As(problem, &damaged) {
		begun.End("")
		if s.Spec.Workspace != nil {
			problem = fmt.Errorf("its kept files cannot be used and are set aside, and the next call begins without: %w", problem)
			return nil, nil, &call.StartError{Env: s.Spec.Name, Err: problem}
		}
		if begun, err = next(ctx, s); err != nil {
			return nil, nil, err
		}
	}
	_, _ = restore(ctx, files, begun.Sandbox()) // there are none now
	return &call.Restored{Lost: problem.Error()}, begun, nil
}

// restore writes the kept files into a sandbox. It returns nil if no files were ever kept.
func restore(ctx context.Context, files *Files, box sandbox.Sandbox) (*call.Restored, error) {
	head, err := files.Head()
	if err != nil {
		return nil, err
	}
	saver, ok := box.(sandbox.Saver)
	if !ok {
		return nil, errNotSaver
	}
	if head == nil {
		// The files that a sandbox begins with count as saved. If this fails, the first
		// save has them.
		_ = saver.RestoreFiles(ctx, strings.NewReader(""))
		if files.WasRemoved() {
			return &call.Restored{Removed: true}, nil
		}
		return nil, nil
	}
	count, size, err := files.Restore(box, func(archive io.Reader) error { return saver.RestoreFiles(ctx, archive) })
	if err != nil {
		return nil, err
	}
	return &call.Restored{Files: count, Bytes: size, Saved: head.Saved}, nil
}

var errNotSaver = errors.New("the files of this sandbox cannot be copied")

// has reports whether a live session keeps its files.
func (p *part) has(key store.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inUse[key] != nil
}

// take returns the files of a session for one more sandbox, and whether it is the first. The caller
// has the session's turn, so there is one call for a key at a time.
func (p *part) take(key store.Key) (k *kept, isFirst bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k = p.inUse[key]
	if k == nil {
		// Sessions of other keys must not wait for the disk, or for another process.
		p.mu.Unlock()
		files, err := acquire(p.store, key)
		p.mu.Lock()
		if err != nil {
			return nil, false, err
		}
		k = &kept{files: files, key: key}
		p.inUse[key] = k
	}
	k.users++
	return k, k.users == 1, nil
}

// leave gives the files of a session back for one sandbox.
func (p *part) leave(k *kept) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k.users--; k.users > 0 {
		return
	}
	delete(p.inUse, k.key)
	if !k.saving { // otherwise, the save closes them
		k.files.Close()
	}
}

// member is a sandbox that has kept files.
type member struct {
	session.Member
	part *part
	kept *kept
	// unsaved says that files may have changed since the last save.
	unsaved bool
}

// Call implements [session.Member].
func (m *member) Call(ctx context.Context, c call.Call, request sandbox.Request) (call.Result, error) {
	result, err := m.Member.Call(ctx, c, request)
	m.part.mu.Lock()
	defer m.part.mu.Unlock()
	if m.kept.problem != "" {
		result.Notes = append(result.Notes, call.Unsaved{Reason: m.kept.problem})
	}
	if err != nil && m.kept.users == 1 { // another sandbox still has the files as they are
		result.Notes = append(result.Notes, call.Survived{Earlier: true})
	}
	m.unsaved = err == nil
	return result, err
}

// Settle implements [session.Member].
func (m *member) Settle(ending bool) []func() {
	todo := m.Member.Settle(ending)
	if m.unsaved {
		m.unsaved = false
		m.part.mu.Lock()
		defer m.part.mu.Unlock()
		m.kept.saving = true
		todo = append(todo, m.save)
	}
	return todo
}

func (m *member) save() {
	ctx, cancel := context.WithTimeout(context.Background(), saveTimeout)
	defer cancel()
	began := time.Now()
	log, id := m.part.log, m.kept.key.Session
	saver, ok := m.Sandbox().(sandbox.Saver)
	err := errNotSaver
	if ok {
		err = m.kept.files.Save(saver, func(extent sandbox.Extent) io.Reader { return saver.SaveFiles(ctx, extent) })
	}
	m.part.mu.Lock()
	defer m.part.mu.Unlock()
	m.kept.saving = false
	m.kept.problem = ""
	if err != nil {
		m.kept.problem = store.Reason(err)
	}
	if m.kept.users == 0 { // the session has ended meanwhile
		m.kept.files.Close()
	}
	select {
	case <-m.Sandbox().Done():
	default:
		if err != nil {
			log.Warn("files of a session are not saved", "session", id, "error", err)
		}
	}
	log.Debug("files of a session saved", "session", id, "ms", time.Since(began).Milliseconds())
}

// End implements [session.Member].
func (m *member) End(why call.Cause) {
	m.Member.End(why)
	m.part.leave(m.kept)
}

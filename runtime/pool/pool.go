// Package pool starts sandboxes before a call needs them, with their interpreters loaded, so that a
// call need not wait for a start. A [Pool] is a [sandbox.Starter] in front of another one.
//
// It promises that a sandbox is handed out once, and only if it lives and equals the result of a
// start at that moment; that filling leaves half of the processors to running calls, gives a call
// that has just begun a head start, and stays within a stated memory; and that a burst of calls
// makes it keep more sandboxes until the burst is over. If no sandbox is ready, it starts one.
package pool

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

const (
	// fillDelay is how long the pool leaves the processors to a call that took
	// a sandbox before it starts the next one: the shortest calls have ended
	// by then.
	fillDelay = 5 * time.Millisecond
	// fillShare is the part of a start's time that the delay is, if that is more, up to
	// maxFillDelay: environments with long starts have longer calls, and their starts slow calls
	// down more. An emulated machine starts for half a second.
	fillShare    = 16
	maxFillDelay = 50 * time.Millisecond
	// burstEnd is how long no call may have found a shelf empty before the sandboxes that a burst
	// added are ended.
	burstEnd = 10 * time.Second
	// maxBurst bounds the ready sandboxes of a kind in a burst, unless the operator asks for more.
	maxBurst = 16
	// maxAdded bounds the kinds that [Pool.Add] adds.
	maxAdded = 8
	// firstRetry is the pause after a sandbox that did not start or stay; it
	// doubles with each further one. After maxFailures only a call tries
	// again.
	firstRetry  = 250 * time.Millisecond
	maxFailures = 6
	// unmeasuredSize is the assumed memory of a sandbox before it was measured, in bytes: more than
	// the largest interpreter uses.
	unmeasuredSize = 64 << 20
	// overhead is the memory of bubblewrap's two processes and of the kernel's structures for a
	// sandbox, in bytes.
	overhead = 2 << 20
	// maxBudget bounds the memory of the whole pool, in bytes; on a small
	// machine it is an eighth of the memory.
	maxBudget = 2 << 30
)

var errNotPooled = errors.New("sandboxes of this kind cannot wait for a call")

// errEarly reports a sandbox that did something before it was asked to.
var errEarly = errors.New("it ended, or wrote, before a call came")

// Kind is a kind of sandbox. Count of them are kept ready.
type Kind struct {
	Spec  sandbox.Spec // its name is the kind's
	Count int
}

// Pool keeps sandboxes ready.
type Pool struct {
	next     sandbox.Starter
	log      *slog.Logger
	parallel int   // starts at a time
	budget   int64 // bytes

	ctx     context.Context // of the starts
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	filling  bool // between Fill and Close
	shelves  map[string]*shelf
	starting int
	used     int64       // bytes of what is ready or starting
	timer    *time.Timer // of the next fill; nil if none is due
	due      time.Time   // when it fills
}

var _ sandbox.Starter = (*Pool)(nil)

// shelf has the ready sandboxes of one kind.
type shelf struct {
	kind Kind
	// want is how many shall be ready: the kind's count, or more in a burst.
	want  int
	ready []*entry
	// starting counts the starts in the background; each of the calls in waiting gets one of them.
	starting int
	waiting  []chan *entry
	size     int64         // bytes that one takes
	took     time.Duration // what the last start took
	failures int           // in a row
	paused   bool          // after a failure
	burst    *time.Timer
	retry    *time.Timer
	// unused ends a shelf that [Pool.Add] added; nil for others. added is when that was called last.
	unused *time.Timer
	added  time.Time
}

// entry is a sandbox and the files that it was started from.
type entry struct {
	sandbox.Sandbox
	sandbox.Pooled
	files fileIDs
	size  int64
}

// fileIDs tell the files of two starts apart: one of them may have been replaced in between.
type fileIDs struct{ exec, project, inbox fileID }

type fileID struct {
	device, inode uint64
	changed       unix.Timespec
}

// New returns a pool in front of next. It starts no sandbox by itself until [Pool.Fill]. Its owner
// calls [Pool.Close].
func New(next sandbox.Starter, log *slog.Logger) *Pool {
	p := &Pool{
		next:     next,
		log:      log,
		parallel: max(1, runtime.NumCPU()/2),
		budget:   defaultBudget(),
		shelves:  map[string]*shelf{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// defaultBudget is the memory that a pool may use, in bytes.
func defaultBudget() int64 {
	return min(maxBudget, cmp.Or(host.Memory(), maxBudget)/8)
}

// Keep sets the kinds that are kept ready from now on. It ends ready sandboxes of other kinds, and
// of changed ones.
func (p *Pool) Keep(kinds []Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := map[string]Kind{}
	for _, kind := range kinds {
		next[kind.Spec.Name] = kind
	}
	for name, s := range p.shelves {
		if kind, ok := next[name]; s.unused == nil && !(ok && s.keeps(kind)) {
			p.drop(s)
		}
	}
	for _, kind := range next {
		p.shelf(kind)
	}
	p.fill()
}

// Add keeps a kind ready, beside the kinds of Keep, until Add has not been called with it for a time.
// If more than maxAdded kinds are, it drops the kind that was added longest ago.
func (p *Pool) Add(kind Kind, idle time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.shelves[kind.Spec.Name]
	if s != nil && !s.keeps(kind) {
		p.drop(s)
	}
	if s = p.shelf(kind); s == nil {
		return
	}
	s.added = time.Now()
	if s.unused != nil {
		s.unused.Reset(idle)
		return
	}
	s.unused = time.AfterFunc(idle, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.current(s) && time.Since(s.added) >= idle {
			p.drop(s)
		}
	})
	var oldest *shelf
	count := 0
	for _, other := range p.shelves {
		if other.unused == nil {
			continue
		}
		if count++; oldest == nil || other.added.Before(oldest.added) {
			oldest = other
		}
	}
	if count > maxAdded {
		p.drop(oldest)
	}
	p.fill()
}

// keeps reports whether a shelf has the sandboxes of a kind.
func (s *shelf) keeps(kind Kind) bool {
	return kind.Spec.Same(s.kind.Spec) && kind.Count == s.kind.Count
}

// shelf returns the shelf of a kind, or nil if none of it are kept.
func (p *Pool) shelf(kind Kind) *shelf {
	name := kind.Spec.Name
	if p.shelves[name] == nil && kind.Count > 0 && p.ctx.Err() == nil {
		p.shelves[name] = &shelf{kind: kind, want: kind.Count, size: unmeasuredSize}
	}
	return p.shelves[name]
}

// drop removes a shelf, and ends its ready sandboxes and timers. Running starts notice when they are
// done.
func (p *Pool) drop(s *shelf) {
	delete(p.shelves, s.kind.Spec.Name)
	s.want = 0
	p.trim(s)
	for _, timer := range []*time.Timer{s.burst, s.retry, s.unused} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// trim ends ready sandboxes beyond the wanted number, the oldest first.
func (p *Pool) trim(s *shelf) {
	for len(s.ready) > s.want {
		p.discard(s, s.ready[0])
	}
}

// discard ends a sandbox that is ready.
func (p *Pool) discard(s *shelf, e *entry) {
	p.remove(s, e)
	e.Kill()
}

// remove takes a sandbox off its shelf, and reports whether it was there.
func (p *Pool) remove(s *shelf, e *entry) bool {
	at := slices.Index(s.ready, e)
	if at < 0 {
		return false
	}
	s.ready = slices.Delete(s.ready, at, at+1)
	p.used -= e.size
	return true
}

// Fill starts filling the pool.
func (p *Pool) Fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.filling {
		return
	}
	p.filling = true
	p.log.Debug("pool", "memory_mb", p.budget>>20, "starts_at_a_time", p.parallel)
	p.fill()
}

// Close ends the ready sandboxes and starts no more. It waits until running starts have ended, at
// most for within.
func (p *Pool) Close(within time.Duration) {
	p.mu.Lock()
	p.cancel()
	for _, s := range p.shelves {
		p.drop(s)
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	sandbox.WaitWithin(&p.running, within)
}

// Start returns a sandbox in which no code has run: a ready one, one on its way, or a
// new one.
func (p *Pool) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	e := p.take(ctx, spec)
	grow := ""
	if e == nil && spec.Base != "" {
		base := spec
		base.Name, base.Exec, base.Base, base.BaseExec = spec.Base, spec.BaseExec, "", ""
		e, grow = p.take(ctx, base), spec.Exec
	}
	if e != nil {
		err := e.Give(spec.Principal)
		if grower, can := e.Sandbox.(sandbox.Grower); err == nil && grow != "" {
			if err = errors.New("it cannot get packages"); can {
				err = grower.Grow(ctx, grow)
			}
		}
		if err == nil {
			return e.Sandbox, nil
		}
		p.log.Warn("pooled sandbox cannot be handed over, and another one is started", "env", spec.Name, "error", err)
		e.Kill()
	}
	return p.next.Start(ctx, spec)
}

// take returns a sandbox that is ready or on its way, or nil.
func (p *Pool) take(ctx context.Context, spec sandbox.Spec) *entry {
	p.mu.Lock()
	s := p.shelves[spec.Name]
	if s == nil || !s.kind.Spec.Same(spec) || !p.filling {
		p.mu.Unlock()
		return nil
	}
	files := filesOf(spec)
	for len(s.ready) > 0 {
		e := s.ready[0]
		if e.files == files && e.Idle() {
			p.remove(s, e)
			s.failures = 0
			p.fillSoon(s)
			p.mu.Unlock()
			return e
		}
		p.log.Info("pooled sandbox replaced", "env", spec.Name)
		p.discard(s, e)
	}
	s.failures, s.paused = 0, false
	p.widen(s)
	p.fillSoon(s)
	if s.starting <= len(s.waiting) {
		p.mu.Unlock()
		return nil
	}
	next := make(chan *entry, 1)
	s.waiting = append(s.waiting, next)
	p.mu.Unlock()

	select {
	case e := <-next:
		if e != nil && e.files != files {
			e.Kill()
			return nil
		}
		return e
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		if at := slices.Index(s.waiting, next); at >= 0 {
			s.waiting = slices.Delete(s.waiting, at, at+1)
		} else if e := <-next; e != nil {
			p.shelve(s, e)
		}
		return nil
	}
}

// widen makes a shelf want more for a while, because a call found it empty.
func (p *Pool) widen(s *shelf) {
	s.want = max(s.want, min(2*s.want, maxBurst))
	if s.burst != nil {
		s.burst.Stop()
	}
	s.burst = time.AfterFunc(burstEnd, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.current(s) {
			s.want = s.kind.Count
			p.trim(s)
		}
	})
}

// current reports whether a shelf is still to be filled.
func (p *Pool) current(s *shelf) bool { return p.shelves[s.kind.Spec.Name] == s }

// fillSoon fills the pool when a call that took a sandbox from a shelf has had its head
// start.
func (p *Pool) fillSoon(s *shelf) {
	delay := max(fillDelay, min(s.took/fillShare, maxFillDelay))
	due := time.Now().Add(delay)
	if p.timer != nil {
		if due.Before(p.due) {
			p.due = due
			p.timer.Reset(delay)
		}
		return
	}
	p.due = due
	p.timer = time.AfterFunc(delay, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.timer = nil
		p.fill()
	})
}

// fill starts missing sandboxes as far as the bounds allow.
func (p *Pool) fill() {
	if !p.filling || p.ctx.Err() != nil {
		return
	}
	for p.starting < p.parallel {
		s := p.neediest()
		if s == nil {
			return
		}
		s.starting++
		p.starting++
		p.used += s.size
		reserved := s.size
		p.running.Go(func() { p.start(s, reserved) })
	}
}

// neediest returns the shelf with the smallest part of its wanted sandboxes, among those that may
// have one more, or nil.
func (p *Pool) neediest() *shelf {
	var found *shelf
	share := func(s *shelf) float64 { return float64(len(s.ready)+s.starting) / float64(s.want) }
	for _, s := range p.shelves {
		if s.paused || len(s.ready)+s.starting >= s.want || p.used+s.size > p.budget {
			continue
		}
		// The memory of a sandbox is known when the first one is ready.
		if s.size == unmeasuredSize && s.starting > 0 {
			continue
		}
		if found == nil || share(s) < share(found) || share(s) == share(found) && s.kind.Spec.Name < found.kind.Spec.Name {
			found = s
		}
	}
	return found
}

// start starts one sandbox for a shelf; reserved is its part of p.used.
func (p *Pool) start(s *shelf, reserved int64) {
	e := &entry{files: filesOf(s.kind.Spec)}
	spec := s.kind.Spec
	spec.Warm = true
	began := time.Now()
	err := guard.ErrPanic
	_ = guard.Run(func() { e.Sandbox, err = p.next.Start(p.ctx, spec) }) // is logged
	if err == nil {
		var ok bool
		if e.Pooled, ok = e.Sandbox.(sandbox.Pooled); ok {
			e.OnEnd(func() { p.entryEnded(s, e) })
		} else {
			e.Kill()
			err = errNotPooled
		}
	}
	took := time.Since(began)

	p.mu.Lock()
	defer p.mu.Unlock()
	s.starting--
	p.starting--
	p.used -= reserved
	defer p.fill()
	if err != nil {
		if p.ctx.Err() == nil && !errors.Is(err, sandbox.ErrClosed) {
			p.failed(s, err)
		}
		e = nil
	} else {
		if measured := e.Memory(); measured > 0 {
			s.size = min(measured, spec.Limits.Memory) + overhead
		}
		e.size, s.took = s.size, took
	}
	switch {
	case len(s.waiting) > 0:
		s.waiting[0] <- e // is buffered for the one answer
		s.waiting = s.waiting[1:]
	case e != nil:
		p.shelve(s, e)
	}
}

// shelve puts a sandbox on its shelf, if it is wanted there.
func (p *Pool) shelve(s *shelf, e *entry) {
	if !p.current(s) || len(s.ready) >= s.want || p.ctx.Err() != nil {
		e.Kill()
		return
	}
	if !e.Idle() {
		e.Kill()
		p.failed(s, errEarly)
		return
	}
	s.ready = append(s.ready, e)
	p.used += e.size
}

// entryEnded replaces a sandbox that ended while it was ready.
func (p *Pool) entryEnded(s *shelf, e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.remove(s, e) {
		p.failed(s, errEarly)
	}
}

// failed counts a sandbox that did not start or stay, and pauses.
func (p *Pool) failed(s *shelf, err error) {
	if !p.current(s) {
		return
	}
	s.failures++
	p.log.Warn("sandbox of the pool failed", "env", s.kind.Spec.Name, "failures", s.failures, "error", err)
	s.paused = true
	if s.retry != nil {
		s.retry.Stop()
	}
	if s.failures >= maxFailures {
		return
	}
	s.retry = time.AfterFunc(firstRetry<<(s.failures-1), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		s.paused = false
		p.fill()
	})
}

// filesOf identifies the files that a sandbox would be started from now.
func filesOf(spec sandbox.Spec) fileIDs {
	return fileIDs{exec: identify(spec.Exec), project: identify(spec.Host.Project.Dir), inbox: identify(spec.Host.Inbox)}
}

// identify identifies a file or folder. Changes inside it do not count.
func identify(path string) fileID {
	var stat unix.Stat_t
	if path == "" || unix.Stat(path, &stat) != nil {
		return fileID{}
	}
	id := fileID{device: uint64(stat.Dev), inode: stat.Ino}
	if stat.Mode&unix.S_IFMT == unix.S_IFREG {
		id.changed = stat.Mtim
	}
	return id
}

// Package pool keeps sandboxes started before anybody asks for them, with
// their interpreters loaded, so that a call need not wait for a start.
//
// It promises that a sandbox is handed out once, and only while it lives and
// is what a start at that moment would give; that filling leaves half of the
// processors to what runs, gives a call that has just begun a head start, and
// holds no more than a stated memory; and that a burst makes it keep more,
// until it is over. Without one ready it starts one, so that a pool of none
// is no pool.
package pool

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

const (
	// headStart is what a call that took a sandbox has for itself before the
	// next one is started: the shortest calls have ended by then.
	headStart = 5 * time.Millisecond
	// calm is how long no call may have found an environment's shelf empty
	// before what a burst added to it is given back.
	calm = 10 * time.Second
	// most is how many sandboxes of an environment a burst makes ready at
	// most; what the operator asks for may be more.
	most = 16
	// firstRetry is the pause after a sandbox that did not start or stay; it
	// doubles with each further one. After maxFailures only a call tries
	// again.
	firstRetry  = 250 * time.Millisecond
	maxFailures = 6
	// unknown is what a sandbox is taken to use that was not measured yet, in
	// bytes: more than the largest interpreter does.
	unknown = 64 << 20
	// overhead is for bubblewrap's two processes and what the kernel keeps for a
	// sandbox, in bytes.
	overhead = 2 << 20
	// maxBudget bounds the memory of the whole pool, in bytes; on a small
	// machine it is an eighth of the memory.
	maxBudget = 2 << 30
)

// errEarly reports a sandbox of which nobody had asked anything.
var errEarly = errors.New("it ended, or spoke, before a call came")

// Options are what all sandboxes of a pool have in common.
type Options struct {
	// Inherit holds the variables that every sandbox gets.
	Inherit map[string]string
	// Project is the folder that every sandbox shows; empty where there is
	// none.
	Project string
}

// Pool keeps sandboxes ready.
type Pool struct {
	launcher *sandbox.Launcher
	options  Options
	log      *slog.Logger
	parallel int   // starts at a time
	budget   int64 // bytes
	calm     time.Duration

	ctx     context.Context // of the starts
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	open     bool
	shelves  map[string]*shelf
	starting int
	held     int64 // bytes of what is ready or starting
	timer    *time.Timer
}

// shelf holds what is ready of one environment.
type shelf struct {
	env  registry.Environment
	kind kind
	// want is how many shall be ready: the environment's prewarm, or more.
	want  int
	ready []*entry
	// starting counts those on their way in the background, waiting the
	// calls that each take one of these.
	starting int
	waiting  []chan *entry
	size     int64 // bytes that one takes
	failures int   // in a row
	paused   bool  // after a failure
	calm     *time.Timer
	retry    *time.Timer
}

// kind is what of an environment decides how its sandboxes are started.
type kind struct {
	exec   string
	output int64
	limits cgroup.Limits
}

func kindOf(env registry.Environment) kind {
	return kind{
		exec:   env.SessionExec,
		output: env.OutputBytes,
		limits: cgroup.Limits{Memory: env.MemoryMB << 20, Tasks: int(env.PIDs), CPUs: env.CPUs},
	}
}

// entry is a sandbox and what it was started from.
type entry struct {
	*sandbox.Sandbox
	origin origin
	size   int64
}

// origin tells the files behind two starts apart: one may have been replaced
// between them.
type origin struct{ exec, project file }

type file struct {
	device, inode uint64
	changed       unix.Timespec
}

// New returns a pool that starts nothing until it is opened.
func New(launcher *sandbox.Launcher, options Options, log *slog.Logger) *Pool {
	p := &Pool{
		launcher: launcher,
		options:  options,
		log:      log,
		parallel: max(1, runtime.NumCPU()/2),
		budget:   budget(),
		calm:     calm,
		shelves:  map[string]*shelf{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// budget is the memory that a pool may hold, in bytes.
func budget() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return maxBudget / 8
	}
	return min(maxBudget, int64(info.Totalram)*int64(info.Unit)/8)
}

// Set names the environments that there are from now on. What is ready of
// others, or of what an environment was before, is ended.
func (p *Pool) Set(environments map[string]registry.Environment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, s := range p.shelves {
		if env, ok := environments[name]; !ok || kindOf(env) != s.kind || env.Prewarm != s.env.Prewarm {
			p.drop(s)
			delete(p.shelves, name)
		}
	}
	for name, env := range environments {
		if p.shelves[name] == nil && env.Prewarm > 0 && p.ctx.Err() == nil {
			p.shelves[name] = &shelf{env: env, kind: kindOf(env), want: env.Prewarm, size: unknown}
		}
	}
	p.fill()
}

// drop ends what is ready on a shelf and what it waits for. Starts that are
// under way find out when they are done.
func (p *Pool) drop(s *shelf) {
	s.want = 0
	p.trim(s)
	for _, timer := range []*time.Timer{s.calm, s.retry} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// trim ends what is ready beyond what is wanted, the oldest first.
func (p *Pool) trim(s *shelf) {
	for len(s.ready) > s.want {
		p.end(s, s.ready[0])
	}
}

// end ends a sandbox that is ready.
func (p *Pool) end(s *shelf, e *entry) {
	p.remove(s, e)
	e.Kill()
}

// remove takes a sandbox off its shelf; it says whether it was there.
func (p *Pool) remove(s *shelf, e *entry) bool {
	at := slices.Index(s.ready, e)
	if at < 0 {
		return false
	}
	s.ready = slices.Delete(s.ready, at, at+1)
	p.held -= e.size
	return true
}

// Open starts filling the pool.
func (p *Pool) Open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		return
	}
	p.open = true
	p.log.Debug("pool", "memory_mb", p.budget>>20, "starts_at_a_time", p.parallel)
	p.fill()
}

// Close ends what is ready and starts nothing more. It waits until starts
// that are under way have ended, at most for within.
func (p *Pool) Close(within time.Duration) {
	p.mu.Lock()
	p.cancel()
	for name, s := range p.shelves {
		p.drop(s)
		delete(p.shelves, name)
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	done := make(chan struct{})
	go func() {
		p.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(within):
	}
}

// Take returns a sandbox of an environment in which no code has run: one that
// is ready, one that is on its way, or a new one.
func (p *Pool) Take(ctx context.Context, env registry.Environment) (*sandbox.Sandbox, error) {
	if box := p.take(ctx, env); box != nil {
		return box, nil
	}
	return p.launcher.Start(ctx, p.spec(env, false))
}

func (p *Pool) take(ctx context.Context, env registry.Environment) *sandbox.Sandbox {
	p.mu.Lock()
	s := p.shelves[env.Name]
	if s == nil || s.kind != kindOf(env) || !p.open {
		p.mu.Unlock()
		return nil
	}
	now := p.origin(env)
	for len(s.ready) > 0 {
		e := s.ready[0]
		if e.origin == now && e.Quiet() {
			p.remove(s, e)
			s.failures = 0
			p.later()
			p.mu.Unlock()
			return e.Sandbox
		}
		p.log.Info("pooled sandbox replaced", "env", env.Name)
		p.end(s, e)
	}
	s.failures, s.paused = 0, false
	p.burst(s)
	p.later()
	if s.starting <= len(s.waiting) {
		p.mu.Unlock()
		return nil
	}
	turn := make(chan *entry, 1)
	s.waiting = append(s.waiting, turn)
	p.mu.Unlock()

	var e *entry
	select {
	case e = <-turn:
		if e == nil || e.origin == now {
			break
		}
		e.Kill()
		e = nil
	case <-ctx.Done():
		p.mu.Lock()
		if at := slices.Index(s.waiting, turn); at >= 0 {
			s.waiting = slices.Delete(s.waiting, at, at+1)
		} else if e := <-turn; e != nil {
			p.put(s, e)
		}
		p.mu.Unlock()
	}
	if e == nil {
		return nil
	}
	return e.Sandbox
}

// burst wants more of an environment of which a call found none ready, for a
// while.
func (p *Pool) burst(s *shelf) {
	s.want = max(s.want, min(2*s.want, most))
	if s.calm != nil {
		s.calm.Stop()
	}
	s.calm = time.AfterFunc(p.calm, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.shelves[s.env.Name] == s {
			s.want = s.env.Prewarm
			p.trim(s)
		}
	})
}

// later fills the pool when the call that begins now has had its head start.
func (p *Pool) later() {
	if p.timer != nil {
		return
	}
	p.timer = time.AfterFunc(headStart, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.timer = nil
		p.fill()
	})
}

// fill starts what is missing, as far as it may.
func (p *Pool) fill() {
	if !p.open || p.ctx.Err() != nil {
		return
	}
	for p.starting < p.parallel {
		s := p.next()
		if s == nil {
			return
		}
		s.starting++
		p.starting++
		p.held += s.size
		size := s.size
		p.running.Go(func() { p.start(s, size) })
	}
}

// next is the shelf that has the smallest part of what it wants, and room.
func (p *Pool) next() *shelf {
	var next *shelf
	share := func(s *shelf) float64 { return float64(len(s.ready)+s.starting) / float64(s.want) }
	for _, s := range p.shelves {
		if s.paused || len(s.ready)+s.starting >= s.want || p.held+s.size > p.budget {
			continue
		}
		// What one of them takes is known when the first has come.
		if s.size == unknown && s.starting > 0 {
			continue
		}
		if next == nil || share(s) < share(next) || share(s) == share(next) && s.env.Name < next.env.Name {
			next = s
		}
	}
	return next
}

// start starts one sandbox for a shelf; size is what was set aside for it.
func (p *Pool) start(s *shelf, size int64) {
	from := p.origin(s.env)
	box, err := p.launcher.Start(p.ctx, p.spec(s.env, true))
	e := &entry{Sandbox: box, origin: from}
	if err == nil {
		box.OnEnd(func() { p.bury(s, e) })
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	s.starting--
	p.starting--
	p.held -= size
	defer p.fill()
	if err != nil {
		if p.ctx.Err() == nil && !errors.Is(err, sandbox.ErrClosed) {
			p.failed(s, err)
		}
		if len(s.waiting) > 0 {
			s.waiting[0] <- nil // has room for the one answer
			s.waiting = s.waiting[1:]
		}
		return
	}
	if used := box.Memory(); used > 0 {
		s.size = min(used, s.kind.limits.Memory) + overhead
	}
	e.size = s.size
	if len(s.waiting) > 0 {
		s.waiting[0] <- e
		s.waiting = s.waiting[1:]
		return
	}
	p.put(s, e)
}

// put puts a sandbox on its shelf, if there is room.
func (p *Pool) put(s *shelf, e *entry) {
	if p.shelves[s.env.Name] != s || len(s.ready) >= s.want || p.ctx.Err() != nil {
		e.Kill()
		return
	}
	if !e.Quiet() {
		e.Kill()
		p.failed(s, errEarly)
		return
	}
	s.ready = append(s.ready, e)
	p.held += e.size
}

// bury replaces a sandbox that ended while it was ready.
func (p *Pool) bury(s *shelf, e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.remove(s, e) {
		p.failed(s, errEarly)
	}
}

// failed counts a sandbox that did not start or stay, and pauses.
func (p *Pool) failed(s *shelf, err error) {
	if p.shelves[s.env.Name] != s {
		return
	}
	s.failures++
	p.log.Warn("sandbox of the pool failed", "env", s.env.Name, "failures", s.failures, "error", err)
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

func (p *Pool) spec(env registry.Environment, warm bool) sandbox.Spec {
	k := kindOf(env)
	return sandbox.Spec{
		Name:        env.Name,
		Exec:        k.exec,
		OutputBytes: k.output,
		Limits:      k.limits,
		Env:         p.options.Inherit,
		Warm:        warm,
	}
}

// origin is what a sandbox started now is started from.
func (p *Pool) origin(env registry.Environment) origin {
	return origin{exec: look(env.SessionExec), project: look(p.options.Project)}
}

// look identifies a file or folder, by nothing that changes inside of it.
func look(path string) file {
	var stat unix.Stat_t
	if path == "" || unix.Stat(path, &stat) != nil {
		return file{}
	}
	f := file{device: uint64(stat.Dev), inode: stat.Ino}
	if stat.Mode&unix.S_IFMT == unix.S_IFREG {
		f.changed = stat.Mtim
	}
	return f
}

// Package limitkeeper holds a sandbox to its limits where no cgroup does it: it
// looks at the processes of its pid namespace and at the sandbox's file
// systems in memory, and reports when they use more than allowed.
//
// It promises that a limit that is crossed is reported soon enough to stop
// code that takes memory as fast as a processor can write it; that memory
// which processes share counts once; and that a sandbox at rest costs two
// short looks a second. It does not see memory that the kernel keeps for
// others: buffers of pipes and sockets, which [Rlimits] bounds by the number
// of descriptors; and pages of shared anonymous memory that are mapped no more
// while others of the same mapping are, which the kernel shows nowhere. A
// cgroup sees all of that, and is better where there is one.
//
// The watch must run as the first process of the namespace that /proc shows.
package limitkeeper

import (
	"context"
	"fmt"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

// Names of the limits, as a sandbox's metadata has them.
const (
	Memory = "memory_mb"
	Tasks  = "pids"
)

// Limits are what a sandbox may use; 0 is no limit.
type Limits struct {
	Memory int64 // bytes, in processes and in files together
	Tasks  int   // processes and threads, the watch's own left out
}

// Usage is what a sandbox uses.
type Usage struct {
	Processes int64 // bytes
	Files     int64 // bytes in file systems in memory, and in System V's
	Tasks     int
	Kernel    kernelUse
}

// Memory is the memory of processes and files, and what the kernel keeps for
// them, in bytes.
func (u Usage) Memory() int64 { return u.Processes + u.Files + u.Kernel.Bytes }

// Crossing says which limit was crossed.
type Crossing struct {
	Limit string
	Value int64 // the limit: MiB, or a number of tasks
	Usage Usage
}

// Used is what was used of the limit, in the unit of Value, rounded up.
func (c Crossing) Used() int64 {
	switch c.Limit {
	case Memory:
		return (c.Usage.Memory() + 1<<20 - 1) >> 20
	case frame.FileLocks:
		return int64(c.Usage.Kernel.Locks)
	case frame.Terminals:
		return int64(c.Usage.Kernel.Terminals)
	}
	return int64(c.Usage.Tasks)
}

func (c Crossing) String() string {
	switch c.Limit {
	case Memory:
		return fmt.Sprintf("used more than %d MB of memory", c.Value)
	case frame.FileLocks:
		return fmt.Sprintf("held more than %d locks on files", c.Value)
	case frame.Terminals:
		return fmt.Sprintf("opened more than %d terminals", c.Value)
	}
	return fmt.Sprintf("more than %d processes and threads", c.Value)
}

const (
	// growth is the speed, in bytes a second, at which a sandbox is taken to
	// be able to fill memory: two processors that do nothing else.
	growth = 5 << 30
	// forks is the number of processes a second that it is taken to start.
	// It may start more: that the number is crossed by far does no harm.
	forks = 5_000

	// Pauses between two looks: next to a limit, far from all while code
	// runs, and when nothing runs.
	nearPause = 4 * time.Millisecond
	farPause  = 100 * time.Millisecond
	idlePause = 500 * time.Millisecond
	// And before any code has run, when an interpreter has loaded: nothing
	// but the agent itself can move.
	freshPause = time.Minute

	// exactTime bounds a look that tells shared memory from private, in time
	// of a processor; the pause after it is as long as it took. It reads
	// about 30 GB of the processes' memory, shared or not, in a second.
	exactTime = time.Second

	// dying is how long a killed process may take to give its memory back
	// without being counted.
	dying = 2 * time.Second
)

// Keeper looks at a sandbox.
type Keeper struct {
	limits  Limits
	folders []string
	gauge   *gauge
	kernel  *kernelGauge
	busy    chan bool
}

// New returns a Keeper over the processes of this namespace and over the file
// systems in memory that the folders lie in.
func New(limits Limits, folders ...string) (*Keeper, error) {
	g, err := newGauge(folders)
	if err != nil {
		return nil, fmt.Errorf("watch the limits: %w", err)
	}
	return &Keeper{limits: limits, folders: folders, gauge: g, kernel: newKernelGauge(), busy: make(chan bool, 1)}, nil
}

// Busy says whether a call runs, from now on. It does not wait for the watch.
// Only one goroutine may call it.
func (w *Keeper) Busy(busy bool) {
	select {
	case <-w.busy: // an older word that was not heard yet
	default:
	}
	w.busy <- busy
}

// Run looks until ctx is done. Before crossed returns it must have sent
// SIGKILL to every other process of the namespace. An error means that the
// limits hold no longer, and that the sandbox has to end.
func (w *Keeper) Run(ctx context.Context, crossed func(Crossing)) error {
	defer w.gauge.close()
	defer w.kernel.close()
	var (
		busy  bool
		used  bool // a call has run
		pause = farPause
		last  Usage
		seen  time.Time // the last look's
		due   = time.Now()
		timer = time.NewTimer(0)
	)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case busy = <-w.busy:
			used = true
			w.kernel.begun()
			// The last look may not have found what began since.
			seen = time.Time{}
			// A look at each call's beginning and end would cost as much as
			// a short call does; the next one only may come sooner.
			if soon := time.Now().Add(w.limits.pause(last, last, pause, busy)); soon.Before(due) {
				due = soon
				timer.Reset(time.Until(due))
			}
			continue
		case <-timer.C:
		}
		if !busy && time.Since(seen) < idlePause && w.gauge.still() {
			due = time.Now().Add(pause)
			timer.Reset(pause)
			continue
		}
		seen = time.Now()
		usage, cost, err := w.look()
		if err != nil {
			return fmt.Errorf("watch the limits: %w", err)
		}
		if c, ok := w.limits.crossed(usage); ok {
			killed := w.gauge.pids()
			crossed(c)
			w.gauge.ignore(killed, time.Now().Add(dying))
			w.kernel.forget()
		}
		pause = w.limits.pause(usage, last, pause, busy)
		if !used && usage.Memory() <= last.Memory() && usage.Tasks <= last.Tasks {
			pause = freshPause
		}
		last = usage
		due = time.Now().Add(max(pause, cost))
		timer.Reset(time.Until(due))
	}
}

// Usage looks once, beside [Keeper.Run], and counts shared memory for each
// process that shares it.
func (w *Keeper) Usage() (Usage, error) {
	g, err := newGauge(w.folders)
	if err != nil {
		return Usage{}, fmt.Errorf("look at the limits: %w", err)
	}
	defer g.close()
	return g.bound(0)
}

// look returns what is used. The first, cheap figure counts shared memory
// more than once; where it is too high, an exact look tells, and its cost is
// returned too. That one may count too much as well: a process that forks
// between two of its readings is counted whole, and its child by half again.
// So before code is stopped for good, everything is stopped for a look that
// nothing can move under.
func (w *Keeper) look() (usage Usage, cost time.Duration, err error) {
	usage, cost, err = w.measure()
	if err != nil || usage.Memory() <= w.limits.Memory || w.limits.Memory == 0 {
		return usage, cost, err
	}
	resume := w.gauge.stop()
	defer resume()
	if usage.Kernel.Bytes > 0 {
		w.kernel.refresh(w.gauge.found)
	}
	usage, again, err := w.measure()
	return usage, cost + again, err
}

// measure returns the cheap figure where it is within the limit, otherwise
// the exact one.
func (w *Keeper) measure() (usage Usage, cost time.Duration, err error) {
	usage, err = w.gauge.bound(w.limits.Tasks)
	usage.Kernel = w.kernel.use(w.gauge.found, w.gauge.self, time.Now())
	if err != nil || w.limits.Memory == 0 || usage.Memory() <= w.limits.Memory {
		return usage, 0, err
	}
	rest := w.limits.Memory - usage.Files - usage.Kernel.Bytes
	if rest < 0 { // whatever the processes have
		return usage, 0, nil
	}
	usage.Processes, cost = w.gauge.exact(exactTime, rest)
	return usage, cost, nil
}

// crossed returns the limit that a usage crosses.
func (l Limits) crossed(u Usage) (Crossing, bool) {
	switch {
	case l.Memory > 0 && u.Memory() > l.Memory:
		return Crossing{Limit: Memory, Value: l.Memory >> 20, Usage: u}, true
	case l.Tasks > 0 && u.Tasks > l.Tasks:
		return Crossing{Limit: Tasks, Value: int64(l.Tasks), Usage: u}, true
	case u.Kernel.Locks > frame.MaxFileLocks:
		return Crossing{Limit: frame.FileLocks, Value: frame.MaxFileLocks, Usage: u}, true
	case u.Kernel.Terminals > frame.MaxTerminals:
		return Crossing{Limit: frame.Terminals, Value: frame.MaxTerminals, Usage: u}, true
	}
	return Crossing{}, false
}

// pause returns how long no limit can be crossed by much; when nothing runs
// and nothing grows, twice the last pause.
func (l Limits) pause(now, last Usage, pause time.Duration, busy bool) time.Duration {
	longest := farPause
	if !busy && now.Memory() <= last.Memory() && now.Tasks <= last.Tasks {
		longest = min(max(2*pause, farPause), idlePause)
	}
	next := longest
	if l.Memory > 0 {
		next = min(next, fill(l.Memory-now.Memory(), growth))
	}
	if l.Tasks > 0 {
		next = min(next, fill(int64(l.Tasks-now.Tasks), forks))
	}
	if !busy && longest == idlePause {
		// At rest next to a limit: what is still there is at rest as well.
		next = max(next, idlePause/10)
	}
	return max(next, nearPause)
}

// fill is the time in which a distance is covered, up to a minute.
func fill(distance, perSecond int64) time.Duration {
	if distance >= 60*perSecond {
		return time.Minute
	}
	return time.Duration(distance * int64(time.Second/time.Microsecond) / perSecond * int64(time.Microsecond))
}

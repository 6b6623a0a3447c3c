// Package limitkeeper enforces the limits of a sandbox where no control group does
// it: it scans the processes of the sandbox's pid namespace and the sandbox's
// file systems in memory, and reports when they use more than is allowed.
//
// It promises that a crossed limit is reported soon enough to stop code that
// takes memory as fast as a processor can write it, that memory which processes
// share counts once, and that a sandbox at rest costs next to nothing (rest.go).
//
// Of the memory that the kernel keeps for processes it sees page tables, pipes by
// the number of open files alone, and a second late what kernel.go counts. It does not see
// pages of shared anonymous memory that are no longer mapped while other pages of
// the same mapping are, which the kernel shows nowhere. A control group sees all
// of that but file locks, and is better where there is one.
//
// The keeper must run as the first process of the namespace that /proc shows.
package limitkeeper

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

// Limits are what a sandbox may use; 0 is no limit.
type Limits struct {
	Memory int64 // bytes, in processes and in files together
	Tasks  int   // processes and threads, without the keeper's own
}

// Usage is what a sandbox uses.
type Usage struct {
	Processes int64 // bytes
	Files     int64 // bytes in file systems in memory, and in System V's shared memory
	Tasks     int   // processes and threads
	Kernel    kernelUse
}

// Memory is the memory of processes and files, and what the kernel keeps for
// them, in bytes.
func (u Usage) Memory() int64 { return u.Processes + u.Files + u.Kernel.Bytes }

// Crossing is a limit that was crossed, and all that was used at that moment.
type Crossing struct {
	frame.Limit
	Usage Usage
}

const (
	// growthRate is how fast a sandbox is assumed to fill memory, in bytes a
	// second: as fast as two processors that do nothing else.
	growthRate = 5 << 30
	// forkRate is how many processes a second a sandbox is assumed to start. It
	// may start more: to cross the number of tasks by far does no harm.
	forkRate = 5_000

	// Pauses between two scans: next to a limit; far from every limit while
	// code runs; and while nothing runs.
	nearPause = 4 * time.Millisecond
	farPause  = 100 * time.Millisecond
	idlePause = 500 * time.Millisecond
	// groupPause is the pause where a control group enforces the limits of memory and
	// processes. What is left for the scans counts a second late anyway (kernel.go), and
	// a scan is a tenth of the first call in a machine that is emulated.
	groupPause = time.Second
	// freshPause is the pause after the interpreter has loaded and before any
	// code has run: nothing but the agent itself can use more.
	freshPause = time.Minute

	// exactTime bounds a scan that tells shared memory from private memory, in
	// processor time. The pause after it is as long as it took. In a second it
	// gets through about 30 GB of the processes' memory, shared or not.
	exactTime = time.Second

	// dyingTime is how long a killed process may take to give its memory back.
	// Until then it is not counted.
	dyingTime = 2 * time.Second
)

// Keeper scans a sandbox.
type Keeper struct {
	limits  Limits
	folders []string
	scanner *scanner
	kernel  *kernelScanner
	group   *Group // nil where there is none
	busy    chan bool
	still   int         // scans in a row that found nothing that had run
	resting atomic.Bool // a scan would find what the last one has found; for tests
}

// New returns a Keeper of the processes of this pid namespace and of the file
// systems in memory in which the folders lie.
func New(limits Limits, folders ...string) (*Keeper, error) {
	s, err := newScanner(folders)
	if err != nil {
		return nil, fmt.Errorf("prepare to scan the sandbox: %w", err)
	}
	return &Keeper{limits: limits, folders: folders, scanner: s, kernel: newKernelScanner(), busy: make(chan bool, 1)}, nil
}

// UseGroup has the keeper report what a control group enforces, too, and returns the
// group, into which the caller moves the code. It is called before Run.
func (k *Keeper) UseGroup(folder int) (*Group, error) {
	group, err := OpenGroup(folder, k.limits)
	k.group = group
	return group, err
}

// Report calls crossed now if a control group has enforced a limit that Run has not
// reported yet: a process that ended by SIGKILL may have been ended by the kernel.
func (k *Keeper) Report(crossed func(Crossing)) {
	if k != nil && k.group != nil {
		k.group.report(crossed)
	}
}

// Busy reports whether a call runs, from now on. It does not wait for the keeper.
// Only one goroutine may call it.
func (k *Keeper) Busy(busy bool) {
	select {
	case <-k.busy: // an older value that was not received yet
	default:
	}
	k.busy <- busy
}

// Run scans until ctx is done. Before crossed returns it must have sent SIGKILL
// to every other process of the namespace. An error means that the limits are
// no longer enforced and that the sandbox has to end.
func (k *Keeper) Run(ctx context.Context, crossed func(Crossing)) error {
	defer k.scanner.close()
	defer k.kernel.close()
	alarm, err := newAlarm()
	if err != nil {
		return fmt.Errorf("prepare to scan the sandbox: %w", err)
	}
	defer alarm.close()
	events := make(chan error, 1)
	if k.group != nil {
		ctx, stop := context.WithCancel(ctx)
		go func() { events <- k.group.watch(ctx, crossed) }()
		defer func() {
			stop()
			<-events
		}()
	}
	var (
		busy  bool
		used  bool // a call has run
		pause = farPause
		last  Usage
		began time.Time // when the last scan began; zero where it does not count
		due   = time.Now()
		timer = time.NewTimer(0)
	)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-events:
			events <- nil
			return err
		case busy = <-k.busy:
			used = true
			// The agent has started a process, or may have.
			k.still = 0
			alarm.unset()
			k.kernel.begun()
			// The last scan does not know the processes that began since.
			began = time.Time{}
			// A scan at the beginning and at the end of each call would cost as
			// much as a short call does. The next scan may only come sooner.
			if soon := time.Now().Add(k.pause(last, last, pause, busy)); soon.Before(due) {
				due = soon
				timer.Reset(time.Until(due))
			}
			continue
		case <-alarm.rings:
			if !alarm.set {
				continue
			}
		case <-timer.C:
		}
		resting := !busy && k.atRest()
		k.resting.Store(resting)
		if resting {
			wait := pause
			if alarm.begin(k.scanner.others()) {
				wait = time.Hour // the alarm is earlier
			}
			due = time.Now().Add(wait)
			timer.Reset(wait)
			continue
		}
		alarm.unset()
		if !busy && time.Since(began) < idlePause && k.scanner.unchanged() {
			due = time.Now().Add(pause)
			timer.Reset(pause)
			continue
		}
		began = time.Now()
		usage, cost, err := k.check()
		if err != nil {
			return fmt.Errorf("scan the sandbox: %w", err)
		}
		if c, ok := k.limits.crossed(usage); ok {
			crossed(c)
			k.scanner.ignore(time.Now().Add(dyingTime))
			k.kernel.forget()
		} else if k.group != nil {
			k.group.reportFull(crossed)
		}
		k.settle(busy)
		pause = k.pause(usage, last, pause, busy)
		if !used && usage.Memory() <= last.Memory() && usage.Tasks <= last.Tasks {
			pause = freshPause
		}
		last = usage
		due = time.Now().Add(max(pause, cost))
		timer.Reset(time.Until(due))
	}
}

// Usage scans once, beside [Keeper.Run]. It counts shared memory for each
// process that shares it.
func (k *Keeper) Usage() (Usage, error) {
	s, err := newScanner(k.folders)
	if err != nil {
		return Usage{}, fmt.Errorf("scan the sandbox: %w", err)
	}
	defer s.close()
	return s.scan(0)
}

// check returns what is used, and what an exact scan has cost, if one was
// needed. An exact scan can count too much: a process that forks between two
// readings is counted whole, and its child by half again. So before a limit
// counts as crossed, every process is stopped and scanned once more.
func (k *Keeper) check() (usage Usage, cost time.Duration, err error) {
	usage, cost, err = k.measure()
	if err != nil || usage.Memory() <= k.limits.Memory || k.limits.Memory == 0 {
		return usage, cost, err
	}
	resume := k.scanner.stop()
	defer resume()
	if usage.Kernel.Bytes > 0 {
		k.kernel.refresh(k.scanner.found, k.scanner.self)
	}
	usage, again, err := k.measure()
	return usage, cost + again, err
}

// measure returns the figure of a cheap scan, which counts shared memory more
// than once, where that is within the limit, and of an exact one otherwise.
func (k *Keeper) measure() (usage Usage, cost time.Duration, err error) {
	usage, err = k.scanner.scan(k.limits.Tasks)
	usage.Kernel = k.kernel.use(k.scanner.found, k.scanner.self, time.Now())
	if err != nil || k.limits.Memory == 0 || usage.Memory() <= k.limits.Memory {
		return usage, 0, err
	}
	rest := k.limits.Memory - usage.Files - usage.Kernel.Bytes
	if rest < 0 { // the limit is crossed without the processes
		return usage, 0, nil
	}
	usage.Processes, cost = k.scanner.exact(exactTime, rest)
	return usage, cost, nil
}

// crossed returns the limit that a usage crosses.
func (l Limits) crossed(u Usage) (Crossing, bool) {
	of := func(name string, value, used int64) (Crossing, bool) {
		return Crossing{frame.Limit{Name: name, Value: value, Used: used}, u}, true
	}
	switch {
	case l.Memory > 0 && u.Memory() > l.Memory:
		return of(frame.Memory, l.Memory>>20, (u.Memory()+1<<20-1)>>20)
	case l.Tasks > 0 && u.Tasks > l.Tasks:
		return of(frame.PIDs, int64(l.Tasks), int64(u.Tasks))
	case u.Kernel.Locks > frame.MaxFileLocks:
		return of(frame.FileLocks, frame.MaxFileLocks, int64(u.Kernel.Locks))
	case u.Kernel.Watches > frame.MaxEpollWatches:
		return of(frame.EpollWatches, frame.MaxEpollWatches, int64(u.Kernel.Watches))
	case u.Kernel.Terminals > frame.MaxTerminals:
		return of(frame.Terminals, frame.MaxTerminals, int64(u.Kernel.Terminals))
	}
	return Crossing{}, false
}

// pause returns how long the next scan can wait.
func (k *Keeper) pause(now, last Usage, pause time.Duration, busy bool) time.Duration {
	if k.group != nil {
		return groupPause
	}
	return k.limits.pause(now, last, pause, busy)
}

// pause returns how long no limit can be crossed by much. Where nothing runs
// and nothing grows, it is twice the last pause, up to idlePause.
func (l Limits) pause(now, last Usage, pause time.Duration, busy bool) time.Duration {
	longest := farPause
	if !busy && now.Memory() <= last.Memory() && now.Tasks <= last.Tasks {
		longest = min(max(2*pause, farPause), idlePause)
	}
	next := longest
	if l.Memory > 0 {
		next = min(next, timeTo(l.Memory-now.Memory(), growthRate))
	}
	if l.Tasks > 0 {
		next = min(next, timeTo(int64(l.Tasks-now.Tasks), forkRate))
	}
	if !busy && longest == idlePause {
		// At rest next to a limit: whatever is there is at rest as well.
		next = max(next, idlePause/10)
	}
	return max(next, nearPause)
}

// timeTo is the time in which a distance is covered, up to a minute.
func timeTo(distance, perSecond int64) time.Duration {
	if distance >= 60*perSecond {
		return time.Minute
	}
	const micros = int64(time.Second / time.Microsecond)
	return time.Duration(distance*micros/perSecond) * time.Microsecond
}

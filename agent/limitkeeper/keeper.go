// Package limitkeeper enforces the limits of a sandbox if no control group does: it
// scans the processes of the sandbox's pid namespace and its file systems in memory,
// and reports when they use more than the limits.
//
// It promises to report a crossed limit soon enough to stop code that takes memory as
// fast as the processors can write it, to count memory that processes share once, and
// to cost next to nothing while the sandbox is at rest (rest.go).
//
// It counts the kernel memory that is known to grow without a bound (kernel.go), some of
// it a second late, and finds a sandbox that takes other kernel memory by what the whole
// machine uses (machine.go). It does not see pages of shared anonymous memory that are
// no longer mapped while other pages of the same mapping are: the kernel shows them
// nowhere. A control group counts processes and most of the kernel's memory exactly and
// is better if there is one. It does not count file locks.
//
// The keeper must run as the first process of the namespace that /proc shows.
package limitkeeper

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Limits are what a sandbox may use; 0 is no limit.
type Limits struct {
	Memory int64 // bytes, in processes and in files together
	Tasks  int   // processes and threads, without the keeper's own
}

// Usage is the memory and the processes of a sandbox.
type Usage struct {
	Processes int64 // bytes
	Files     int64 // bytes in file systems in memory, and in System V's shared memory
	Tasks     int   // processes and threads
	Kernel    kernelUse
	Uncounted int64 // the kernel's memory on the whole machine that is not counted above
}

// Memory is the memory of processes, of files, and of the kernel for them, in bytes.
func (u Usage) Memory() int64 { return u.Processes + u.Files + u.Kernel.Bytes }

// Crossing is a limit that was crossed, and the usage at that moment.
type Crossing struct {
	frame.Limit
	Usage Usage
}

const (
	// growthRate is how fast one processor is assumed to fill memory, in bytes a
	// second.
	growthRate = 5 << 29
	// forkRate is how many processes a second a sandbox is assumed to start. It may
	// start more: a few processes too many do no harm.
	forkRate = 5_000

	// Pauses between two scans: next to a limit; far from every limit while code
	// runs; and while no code runs.
	nearPause = 4 * time.Millisecond
	farPause  = 100 * time.Millisecond
	idlePause = 500 * time.Millisecond
	// groupPause is the pause if a control group enforces the limits of memory and
	// processes. The rest counts a second late anyway (kernel.go), and a scan takes a
	// tenth of the first call in an emulated machine.
	groupPause = time.Second
	// freshPause is the pause after the interpreter has loaded and before any code
	// has run: only the agent itself can use more.
	freshPause = time.Minute

	// exactTime bounds the processor time of a scan that counts shared memory
	// exactly. The pause after it is as long as it took. It covers about 30 GB of
	// mapped memory in a second.
	exactTime = time.Second

	// dyingTime is how long a killed process may take to give its memory back.
	// Until then it does not count.
	dyingTime = 2 * time.Second
)

// Keeper scans a sandbox.
type Keeper struct {
	limits  Limits
	folders []string
	scanner *scanner
	kernel  *kernelScanner
	machine machineWatch
	group   *Group // or nil
	busy    chan bool
	hurried bool        // the agent has a short time slice
	still   int         // scans in a row that found no process that had run
	resting atomic.Bool // another scan would have the result of the last; for tests
}

// New returns a Keeper of the processes of this pid namespace and of the file
// systems in memory that contain the folders.
func New(limits Limits, folders ...string) (*Keeper, error) {
	s, err := newScanner(folders)
	if err != nil {
		return nil, fmt.Errorf("prepare to scan the sandbox: %w", err)
	}
	return &Keeper{
		limits: limits, folders: folders, scanner: s, kernel: newKernelScanner(),
		machine: newMachineWatch(limits), busy: make(chan bool, 1),
	}, nil
}

// UseGroup makes the keeper report the limits that a control group enforces as well. The
// caller moves the code into the group that it returns. It is called before Run.
func (k *Keeper) UseGroup(folder int) (*Group, error) {
	group, err := OpenGroup(folder, k.limits)
	k.group = group
	return group, err
}

// Report calls crossed if a control group has enforced a limit that Run has not reported
// yet: it may have been the kernel that killed a process.
func (k *Keeper) Report(crossed func(Crossing)) {
	if k != nil && k.group != nil {
		k.group.report(crossed)
	}
}

// Busy tells the keeper whether a call runs. It does not wait for the keeper. Only one
// goroutine may call it.
func (k *Keeper) Busy(busy bool) {
	select {
	case <-k.busy: // replace a value that was not received yet
	default:
	}
	k.busy <- busy
}

// Run scans until ctx is done. crossed must send SIGKILL to every other process of the
// namespace before it returns. An error means that the limits are no longer enforced and
// that the sandbox has to end.
func (k *Keeper) Run(ctx context.Context, crossed func(Crossing)) error {
	defer k.scanner.close()
	defer k.kernel.close()
	defer k.machine.close()
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
		since time.Time // when the current call began
		used  bool      // a call has run
		pause = farPause
		last  Usage
		began time.Time // when the last scan began; zero if its result is out of date
		// Nothing runs yet: a short life ends without a scan.
		first = k.pause(last, last, pause, true)
		due   = time.Now().Add(first)
		timer = time.NewTimer(first)
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
			since = time.Now()
			used = true
			k.still = 0 // the agent may have started a process
			alarm.unset()
			k.kernel.begun()
			began = time.Time{}
			// A scan at the beginning and at the end of each call would double the
			// cost of a short call. The next scan only moves forward.
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
			if alarm.arm(k.scanner.others()) {
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
		c, ok := k.limits.crossed(usage)
		if !ok && k.limits.Memory > 0 && k.machine.suspicious(usage.Uncounted) {
			if ok, err = k.try(); err != nil {
				return fmt.Errorf("scan the sandbox: %w", err)
			}
			k.machine.rebase(usage.Uncounted)
			c = k.limits.ofMemory(usage, max(usage.Memory(), k.limits.Memory+1))
		}
		if ok {
			crossed(c)
			k.scanner.ignore(time.Now().Add(dyingTime))
			k.kernel.forget()
		} else if k.group != nil {
			k.group.reportFull(crossed)
		}
		var call time.Duration
		if busy {
			call = time.Since(since)
		}
		k.hurry(call)
		k.note(busy)
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

// check returns the usage, and the cost of an exact scan if one was needed. An exact
// scan can count too much: a process that forks between two reads counts whole, and its
// child by half again. So before a limit counts as crossed, every process is stopped and
// scanned once more.
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

// measure returns the result of a cheap scan, which counts shared memory more than
// once, if that is within the limit, and of an exact one otherwise.
func (k *Keeper) measure() (usage Usage, cost time.Duration, err error) {
	usage, err = k.scanner.scan(k.limits.Tasks)
	machine := k.machine.kernelMemory()
	usage.Kernel = k.kernel.use(k.scanner.found, k.scanner.self, machine, time.Now())
	usage.Uncounted = machine - k.scanner.kernel - usage.Kernel.Bytes
	if err != nil || k.limits.Memory == 0 || usage.Memory() <= k.limits.Memory {
		return usage, 0, err
	}
	rest := k.limits.Memory - usage.Files - usage.Kernel.Bytes
	if rest < 0 { // files and kernel memory alone cross the limit
		return usage, 0, nil
	}
	// Without an exact figure the limit counts as crossed, which check makes sure of.
	exact, cost, ok := k.scanner.exact(exactTime, rest)
	if ok {
		usage.Processes = exact
	}
	return usage, cost, nil
}

// ofMemory is the crossing of the limit of memory by used bytes.
func (l Limits) ofMemory(u Usage, used int64) Crossing {
	return Crossing{frame.Limit{Name: frame.Memory, Value: l.Memory >> 20, Used: (used + 1<<20 - 1) >> 20}, u}
}

func (l Limits) crossed(u Usage) (Crossing, bool) {
	of := func(name string, value, used int64) (Crossing, bool) {
		return Crossing{frame.Limit{Name: name, Value: value, Used: used}, u}, true
	}
	switch {
	case l.Memory > 0 && u.Memory() > l.Memory:
		return l.ofMemory(u, u.Memory()), true
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

// pause returns a time in which no limit can be crossed by much. In a sandbox that neither
// runs nor grows it is twice the last pause, up to idlePause.
func (l Limits) pause(now, last Usage, pause time.Duration, busy bool) time.Duration {
	longest := farPause
	if !busy && now.Memory() <= last.Memory() && now.Tasks <= last.Tasks {
		longest = min(max(2*pause, farPause), idlePause)
	}
	next := longest
	if l.Memory > 0 {
		// A process with one thread may start another.
		processors := max(min(runtime.NumCPU(), now.Tasks), 2)
		next = min(next, timeTo(l.Memory-now.Memory(), growthRate*int64(processors)))
	}
	if l.Tasks > 0 {
		next = min(next, timeTo(int64(l.Tasks-now.Tasks), forkRate))
	}
	if !busy && longest == idlePause {
		// A sandbox at rest does not change, however near a limit is.
		next = max(next, idlePause/10)
	}
	return max(next, nearPause)
}

// timeTo is the time for a distance at this rate, up to a minute.
func timeTo(distance, perSecond int64) time.Duration {
	if distance >= 60*perSecond {
		return time.Minute
	}
	const micros = int64(time.Second / time.Microsecond)
	return time.Duration(distance*micros/perSecond) * time.Microsecond
}

package limitkeeper

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// On a busy machine the keeper must not be late. Since Linux 6.12 a thread with a short
// time slice preempts others soon after it wakes, and older kernels ignore the slice. But
// the agent then also interrupts the interpreter at each line of output, which costs a
// short call a tenth of its processor time. So the agent has the short slice only while
// code runs for long.

const (
	// shortSlice is the shortest time slice that the kernel accepts.
	shortSlice = 100 * time.Microsecond
	// longCall is how long a call runs, and longRun how much processor time code uses
	// between two scans, before the agent takes the short slice. Code writes some 25 MB
	// of memory in that processor time.
	longCall = 20 * time.Millisecond
	longRun  = 10 * time.Millisecond
)

// hasten gives the threads of this process a time slice, or the kernel's default if it is
// 0. The processes that they start keep the default.
func hasten(slice time.Duration) {
	names, _ := os.ReadDir("/proc/self/task")
	for _, name := range names {
		tid, _ := strconv.Atoi(name.Name())
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil {
			continue // a system call filter may refuse it
		}
		attr.Runtime = uint64(slice)
		attr.Flags |= unix.SCHED_FLAG_RESET_ON_FORK
		_ = unix.SchedSetAttr(tid, attr, 0)
	}
}

// hurry takes the short slice if code runs for long, and the usual one otherwise. It comes
// after a scan; call is how long the current call has run.
func (k *Keeper) hurry(call time.Duration) {
	long := call > longCall || timeOf(k.scanner.found)-timeOf(k.scanner.before) > longRun
	switch {
	case long: // again at each scan, because the agent may have new threads
		hasten(shortSlice)
	case k.hurried:
		hasten(0)
	}
	k.hurried = long
}

// timeOf is the processor time of all processes but this one.
func timeOf(found []process) (total time.Duration) {
	for _, p := range found {
		if p.pid != os.Getpid() {
			total += time.Duration(p.time)
		}
	}
	return total
}

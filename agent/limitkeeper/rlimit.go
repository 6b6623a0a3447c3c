package limitkeeper

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// Descriptors of a process: what select(2) can count, and what it may
	// raise that to. Each may stand for 200 KB in a buffer of the kernel.
	softFiles = 1024
	hardFiles = 4096

	// coreSize is 1, because 0 is no limit for a handler that kernel.core_pattern
	// names; that would run as root and read the memory of what crashed. The
	// kernel takes 1 for none, in files too (core(5)).
	coreSize = 1

	// Signals that wait, timers among them, and bytes of POSIX message queues:
	// the kernel counts both for each user of the host too, where they are 95,000
	// and 819,200 for all of an ordinary user's programs. Two queues of the
	// default size, of 82,480 bytes each, fit.
	maxSignals    = 1024
	maxQueueBytes = 192 << 10

	// leastData leaves room for stacks of threads and for interpreters that
	// reserve more than they use.
	leastData = 1 << 30
)

// Rlimit is a limit that the kernel holds each process to.
type Rlimit struct {
	Resource int
	Name     string
	Value    unix.Rlimit
}

// Rlimits returns what the kernel can hold the sandbox's processes to. They
// stop the crudest by an error of the call that goes too far: an allocation
// far above the limit, and processes without end. The number of processes
// includes the watch's own few threads, so that the kernel refuses one more
// before the watch ends them all.
func Rlimits(limits Limits) []Rlimit {
	out := []Rlimit{
		{unix.RLIMIT_CORE, "core", unix.Rlimit{Cur: coreSize, Max: coreSize}},
		{unix.RLIMIT_NOFILE, "nofile", unix.Rlimit{Cur: softFiles, Max: hardFiles}},
		{unix.RLIMIT_SIGPENDING, "sigpending", unix.Rlimit{Cur: maxSignals, Max: maxSignals}},
		{unix.RLIMIT_MSGQUEUE, "msgqueue", unix.Rlimit{Cur: maxQueueBytes, Max: maxQueueBytes}},
	}
	if limits.Memory > 0 {
		// Address space that is private and writable: above the limit,
		// because much of it is never touched.
		data := uint64(max(2*limits.Memory, leastData))
		out = append(out, Rlimit{unix.RLIMIT_DATA, "data", unix.Rlimit{Cur: data, Max: data}})
	}
	if limits.Tasks > 0 && countsPerNamespace() {
		tasks := uint64(limits.Tasks)
		out = append(out, Rlimit{unix.RLIMIT_NPROC, "nproc", unix.Rlimit{Cur: tasks, Max: tasks}})
	}
	return out
}

// countsPerNamespace says whether the kernel counts a user's processes for
// each user namespace, which it does from 5.14 on; before, all those of the
// host's user count. It never counts those of the host's root.
func countsPerNamespace() bool {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return false
	}
	var major, minor int
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); n != 2 {
		return false
	}
	return major > 5 || major == 5 && minor >= 14
}

// Apply sets the limits of a process, which its children inherit; those that
// it already has stay lower where they are.
func Apply(pid int, limits []Rlimit) error {
	for _, l := range limits {
		var now unix.Rlimit
		if err := unix.Prlimit(pid, l.Resource, nil, &now); err != nil {
			return fmt.Errorf("read the limit %s of process %d: %w", l.Name, pid, err)
		}
		value := unix.Rlimit{Cur: min(l.Value.Cur, now.Max), Max: min(l.Value.Max, now.Max)}
		if err := unix.Prlimit(pid, l.Resource, &value, nil); err != nil {
			return fmt.Errorf("set the limit %s of process %d to %d: %w", l.Name, pid, value.Max, err)
		}
	}
	return nil
}

package limitkeeper

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// softFiles is how many descriptors a process has: as many as select(2) can
	// count. A process may raise it to hardFiles, as servers with many connections
	// do. An open file counts as 4 KB of memory, a socket as what it contains.
	softFiles = 1024
	hardFiles = 4096

	// coreSize is 1, because 0 is no limit for a handler that kernel.core_pattern
	// names, which would run as root and read the memory of what crashed. The
	// kernel takes 1 for none, in files too (core(5)).
	coreSize = 1

	// Signals that wait, timers among them, and bytes of POSIX message queues. The
	// kernel also counts both for each user of the host, where all programs of an
	// ordinary user may have 95,000 and 819,200. Two queues of the default size,
	// of 82,480 bytes each, fit.
	maxSignals    = 1024
	maxQueueBytes = 192 << 10

	// minData is enough for the stacks of threads and for interpreters that
	// reserve more address space than they use, in bytes.
	minData = 1 << 30
)

// Rlimit is a limit that the kernel enforces for each process.
type Rlimit struct {
	Resource int    // RLIMIT_*
	Name     string // for messages
	Value    unix.Rlimit
}

// Rlimits returns the limits that the kernel can enforce for the sandbox's
// processes. They stop the crudest code by an error of the call that goes too far: an
// allocation far above the limit, and processes without end. The number of
// processes includes the agent's own few threads, so that the kernel refuses
// one more before the keeper kills them all.
func Rlimits(limits Limits) []Rlimit {
	out := []Rlimit{
		{unix.RLIMIT_CORE, "core", unix.Rlimit{Cur: coreSize, Max: coreSize}},
		{unix.RLIMIT_NOFILE, "nofile", unix.Rlimit{Cur: softFiles, Max: hardFiles}},
		{unix.RLIMIT_SIGPENDING, "sigpending", unix.Rlimit{Cur: maxSignals, Max: maxSignals}},
		{unix.RLIMIT_MSGQUEUE, "msgqueue", unix.Rlimit{Cur: maxQueueBytes, Max: maxQueueBytes}},
	}
	if limits.Memory > 0 {
		// This counts address space that is private and writable, much of which
		// is never touched, and so it lies above the limit.
		data := uint64(max(2*limits.Memory, minData))
		out = append(out, Rlimit{unix.RLIMIT_DATA, "data", unix.Rlimit{Cur: data, Max: data}})
	}
	if limits.Tasks > 0 && countsPerNamespace() {
		tasks := uint64(limits.Tasks)
		out = append(out, Rlimit{unix.RLIMIT_NPROC, "nproc", unix.Rlimit{Cur: tasks, Max: tasks}})
	}
	return out
}

// countsPerNamespace reports whether the kernel counts the processes of a user in
// each user namespace, which it does from 5.14 on. Before, RLIMIT_NPROC counts
// all processes of the user of the host. It never counts those of its root.
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

// Apply sets limits of a process, which its children inherit; pid 0 is this
// process. A limit that is lower already stays.
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

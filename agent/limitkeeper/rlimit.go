package limitkeeper

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// softFiles is the number of descriptors of a process, the most that select(2)
	// can handle. A process may raise it to hardFiles, as servers with many
	// connections do. An open file counts as at least 4 KB of memory.
	softFiles = 1024
	hardFiles = 4096

	// coreSize is 1 because 0 does not keep the kernel from starting the handler in
	// kernel.core_pattern, which would run as root and read the memory of the crashed
	// process. With 1 the kernel writes no core dump at all (core(5)).
	coreSize = 1

	// maxSignals bounds pending signals and timers, and maxQueueBytes POSIX message
	// queues. The kernel also counts both for each user of the host, who may have
	// 95,000 and 819,200. Two queues of the default size, of 82,480 bytes each, fit.
	maxSignals    = 1024
	maxQueueBytes = 192 << 10

	// maxLocked is the kernel's default of the memory that a process may lock, in
	// bytes. The server may have been started with another limit.
	maxLocked = 8 << 20

	// minData is enough for the stacks of threads and for interpreters that reserve
	// more address space than they use, in bytes.
	minData = 1 << 30
)

// Rlimit is a limit that the kernel enforces for each process.
type Rlimit struct {
	Resource int    // RLIMIT_*
	Name     string // for messages
	Value    unix.Rlimit
}

// Rlimits returns the limits that the kernel can enforce for each process of the
// sandbox. The crudest code is stopped by an error of its own system call: an allocation
// far above the limit, or endless processes. The number of processes includes the agent's
// own few threads, so that the kernel refuses one more before the keeper kills them all.
//
// With a real-time priority, or one above the agent's, code would keep the limit keeper
// from running. The server may have been started with the right to them, as the users of
// audio software are on many distributions.
func Rlimits(limits Limits) []Rlimit {
	out := []Rlimit{
		{unix.RLIMIT_CORE, "core", unix.Rlimit{Cur: coreSize, Max: coreSize}},
		{unix.RLIMIT_NOFILE, "nofile", unix.Rlimit{Cur: softFiles, Max: hardFiles}},
		{unix.RLIMIT_SIGPENDING, "sigpending", unix.Rlimit{Cur: maxSignals, Max: maxSignals}},
		{unix.RLIMIT_MSGQUEUE, "msgqueue", unix.Rlimit{Cur: maxQueueBytes, Max: maxQueueBytes}},
		{unix.RLIMIT_MEMLOCK, "memlock", unix.Rlimit{Cur: maxLocked, Max: maxLocked}},
		{unix.RLIMIT_RTPRIO, "rtprio", unix.Rlimit{}},
		{unix.RLIMIT_NICE, "nice", unix.Rlimit{}},
	}
	if limits.Memory > 0 {
		// It counts private writable address space, much of which is never touched,
		// and is therefore higher than the limit.
		data := uint64(max(2*limits.Memory, minData))
		out = append(out, Rlimit{unix.RLIMIT_DATA, "data", unix.Rlimit{Cur: data, Max: data}})
	}
	if limits.Tasks > 0 {
		tasks := uint64(limits.Tasks)
		out = append(out, Rlimit{unix.RLIMIT_NPROC, "nproc", unix.Rlimit{Cur: tasks, Max: tasks}})
	}
	return out
}

// Apply sets limits of a process, which its children inherit. A lower limit stays. pid 0
// is this process.
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

package process

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in what a filter sees of a system call, struct seccomp_data; the
// lower half of an argument comes first.
const (
	offsetNr   = 0
	offsetArgs = 16
	sizeArg    = 8
)

// onlyOwn are the system calls that set or read limits, or choose when and
// where a process runs, each with the argument that says whose. The kernel
// lets a process do that to every one of its user's: with a limit of memory or
// time that the code sets for the agent the sandbox would end, and without
// processor time the agent's watch would come too late.
var onlyOwn = []struct{ nr, arg, own uint32 }{
	{unix.SYS_PRLIMIT64, 0, 0},
	{unix.SYS_SCHED_SETSCHEDULER, 0, 0},
	{unix.SYS_SCHED_SETPARAM, 0, 0},
	{unix.SYS_SCHED_SETATTR, 0, 0},
	{unix.SYS_SCHED_SETAFFINITY, 0, 0},
	{unix.SYS_SETPRIORITY, 0, unix.PRIO_PROCESS},
	{unix.SYS_SETPRIORITY, 1, 0},
	{unix.SYS_IOPRIO_SET, 0, ioprioProcess},
	{unix.SYS_IOPRIO_SET, 1, 0},
}

// ioprioProcess is IOPRIO_WHO_PROCESS, of the kernel's linux/ioprio.h.
const ioprioProcess = 1

// forkFlags are flags of unshare(2) that no kernel knows, and to which the filter
// below says yes: they make package syscall start a process by fork and not
// by vfork, in which the agent would stand still until the program has begun.
// The code can stop the process before.
const forkFlags = unix.CLONE_NEWUSER | 1

// limitOnlySelf forbids this thread, and the processes that it starts, those
// calls for others. The agent's other threads limit the interpreters.
//
// 0 is the process itself; its own number, which no filter knows, is refused.
func limitOnlySelf() error {
	var filter []unix.SockFilter
	for _, call := range onlyOwn {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetNr},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call.nr, Jf: 3},
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetArgs + call.arg*sizeArg},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call.own, Jt: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	}
	filter = append(filter, noFilters()...)
	filter = append(filter,
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetNr},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_UNSHARE, Jf: 3},
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetArgs},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: forkFlags, Jf: 1},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// The kernel takes filters from those that can gain no privilege.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep processes from gaining privileges: %w", err)
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return fmt.Errorf("filter the system calls of processes: %w", errno)
	}
	return nil
}

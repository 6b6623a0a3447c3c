package jail

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lastSignal is the highest signal number of Linux.
const lastSignal = 64

// resetSignals sets every signal to its default and unblocks it. Otherwise the sandbox
// would inherit signals that the caller ignores or blocks: code would not get its own
// SIGTERM, and code could end the first process of its PID namespace, because the kernel
// delivers blocked signals to it. See pid_namespaces(7).
func resetSignals() error {
	// The kernel's struct sigaction, with a signal set of 8 bytes; all zero is
	// SIG_DFL without flags. SIGKILL and SIGSTOP cannot be set.
	var action [4]uint64
	for signal := 1; signal <= lastSignal; signal++ {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	}
	var none unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, nil); err != nil {
		return fmt.Errorf("unblock signals: %w", err)
	}
	return nil
}

// yieldToHost makes this process, and the sandbox that follows it, the kernel's first
// choice when the machine is out of memory. Much kernel memory that code uses counts for
// no process, so that the kernel would otherwise kill the largest program of the host.
// This takes no privilege, and code cannot undo it, because /proc is read-only in the
// sandbox. A description may have a lower score, so that the kernel chooses other
// processes of its control group first.
//
// It also keeps a crash from starting the handler in kernel.core_pattern, which runs as
// root and reads the memory of the crashed process. A limit of 1 byte prevents that, but
// a limit of 0 does not (core(5)). The agent sets the limit as well, but only root may
// raise a hard limit of 0. The system call filter keeps code from lowering it.
//
// Errors are ignored because the sandbox is just as confined: a container may have /proc
// read-only, and an ordinary user cannot raise a hard limit of 0.
func (s *Spec) yieldToHost() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(cmp.Or(s.OOMScore, maxOOMScore))), 0)
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1})
}

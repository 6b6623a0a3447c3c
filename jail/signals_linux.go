package jail

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lastSignal is the highest signal number of Linux.
const lastSignal = 64

// resetSignals sets every signal to its default and unblocks it. Otherwise the sandbox
// would inherit signals that the caller ignores or blocks: code would not get its own
// SIGTERM, and code could end the first process of its PID namespace, to which the
// kernel delivers blocked signals. See pid_namespaces(7).
func resetSignals() error {
	// The kernel's struct sigaction, whose signal set has 8 bytes; all zero is
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

package jail

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lastSignal is the highest that Linux has.
const lastSignal = 64

// leaveSignals undoes what the caller blocks and ignores, which processes
// inherit: code would not get its own SIGTERM, and of signals that the first
// process of a namespace blocks the kernel lets the code send it even those
// that end it.
func leaveSignals() error {
	// All zero is SIG_DFL without flags: struct sigaction of the kernel, whose
	// set of signals has 8 bytes. SIGKILL and SIGSTOP refuse.
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

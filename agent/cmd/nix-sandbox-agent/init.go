package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropSignals has the kernel drop the signals that code sends to the agent. It
// drops every signal that a process of a pid namespace sends to the init of that
// namespace and for which init has no handler (pid_namespaces(7)). But Go's
// runtime has a handler for each signal, which ends the program at SIGQUIT,
// SIGSEGV and others. Two handlers stay, which do no harm: that of SIGCHLD, for
// which the agent waits, and that of SIGURG, by which the runtime preempts
// goroutines. SIGKILL from outside of the sandbox still ends the agent.
//
// Go installs its handlers with every signal blocked while they run. A signal that
// the main thread blocks is not dropped: the kernel delivers it to another thread,
// where it would end the program. The two handlers therefore block only each
// other's signal.
func dropSignals() {
	kept := map[unix.Signal]bool{unix.SIGCHLD: true, unix.SIGURG: true}
	mask := uint64(1)<<(unix.SIGCHLD-1) | uint64(1)<<(unix.SIGURG-1)
	for sig := unix.Signal(1); sig <= 64; sig++ {
		// The kernel's struct sigaction, whose signal set has 8 bytes: handler,
		// flags, restorer, mask. All zero is SIG_DFL without flags.
		var action [4]uint64
		if kept[sig] {
			sigaction(sig, nil, &action)
			action[3] = mask
		}
		if sig != unix.SIGKILL && sig != unix.SIGSTOP {
			sigaction(sig, &action, nil)
		}
	}
}

func sigaction(sig unix.Signal, now, was *[4]uint64) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(now)), uintptr(unsafe.Pointer(was)), 8, 0, 0)
}

package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropSignals makes the kernel drop the signals that code sends to the agent. The kernel
// drops every signal from a process of a pid namespace to its init if init has no handler
// for it (pid_namespaces(7)). But Go's runtime has a handler for each signal, and ends the
// program at SIGQUIT, SIGSEGV and others. Only the handlers of SIGCHLD, because the agent
// waits for it, and SIGURG, which the runtime uses to preempt goroutines, are harmless and
// stay. SIGKILL from outside of the sandbox still ends the agent.
//
// Go's handlers block every signal while they run. If the main thread blocks a signal it is
// not dropped: the kernel delivers it to another thread, and the program ends. So the two
// handlers block only each other's signal.
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

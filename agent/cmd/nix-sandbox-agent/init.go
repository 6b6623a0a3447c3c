package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// shield makes the init of a sandbox deaf to the code in it. The kernel drops
// every signal that a process sends to its init where init has no handler
// (signal(7)); but Go's runtime has one for each, which ends the program at
// SIGQUIT, SIGSEGV and others. Those that stay are harmless: SIGCHLD, which
// the agent waits for, and SIGURG, by which the runtime interrupts itself.
// SIGKILL from outside of the sandbox still ends it.
//
// While a handler runs, Go's runtime has its thread block every signal, and what
// the main thread blocks the kernel gives to another thread instead of dropping
// it, where it ends the program. So the two handlers block each other alone.
func shield() {
	kept := map[unix.Signal]bool{unix.SIGCHLD: true, unix.SIGURG: true}
	mask := uint64(1)<<(unix.SIGCHLD-1) | uint64(1)<<(unix.SIGURG-1)
	for sig := unix.Signal(1); sig <= 64; sig++ {
		// struct sigaction of the kernel, whose set of signals has 8 bytes:
		// handler, flags, restorer, mask. All zero is SIG_DFL without flags.
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

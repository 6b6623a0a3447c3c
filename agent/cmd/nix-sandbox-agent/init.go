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
func shield() {
	kept := map[unix.Signal]bool{unix.SIGCHLD: true, unix.SIGURG: true, unix.SIGKILL: true, unix.SIGSTOP: true}
	// All zero is SIG_DFL without flags: struct sigaction of the kernel,
	// whose set of signals has 8 bytes.
	var action [4]uint64
	for sig := unix.Signal(1); sig <= 64; sig++ {
		if !kept[sig] {
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
		}
	}
}

package jail

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childCalls are system calls that a child of this process makes between fork and execve,
// of which the last is execve. What their arguments point to is kept here, because the
// arguments themselves are numbers.
type childCalls struct {
	list []systemCall
	kept []unsafe.Pointer
	err  error
}

type systemCall struct {
	number uintptr
	args   [5]uintptr
}

// opened stands for a descriptor among arguments: that which the last openat(2) has
// returned. No descriptor has this number.
const opened = ^uintptr(0) >> 1

// add adds a system call. Its arguments are numbers, texts, lists of texts as execve(2)
// takes them, and attributes for mount_setattr(2). A text with a zero byte is an error,
// which err has from then on.
func (c *childCalls) add(number uintptr, args ...any) {
	call := systemCall{number: number}
	for i, arg := range args {
		switch arg := arg.(type) {
		case int:
			call.args[i] = uintptr(arg)
		case uintptr:
			call.args[i] = arg
		case string:
			call.args[i] = c.text(arg)
		case []string:
			list := make([]uintptr, len(arg)+1)
			for i, text := range arg {
				list[i] = c.text(text)
			}
			c.kept = append(c.kept, unsafe.Pointer(&list[0]))
			call.args[i] = uintptr(unsafe.Pointer(&list[0]))
		case *unix.MountAttr:
			c.kept = append(c.kept, unsafe.Pointer(arg))
			call.args[i] = uintptr(unsafe.Pointer(arg))
		}
	}
	c.list = append(c.list, call)
}

func (c *childCalls) text(text string) uintptr {
	if strings.IndexByte(text, 0) >= 0 {
		c.err = fmt.Errorf("%q has a zero byte", text)
	}
	first := unsafe.StringData(text + "\x00")
	c.kept = append(c.kept, unsafe.Pointer(first))
	return uintptr(unsafe.Pointer(first))
}

// forkAndCall makes a child of this process, in new namespaces of the kinds that flags of
// clone(2) say, which makes the system calls. It returns the child's process id, a pidfd of
// it, and, where one of the calls failed, that error; the child has ended then.
//
// Package syscall starts a program in a child at once, and a program in Go that makes these
// calls in the new namespaces would take 1 ms more of each start.
//
// The caller has locked its goroutine to its thread, and has set every signal to its
// default, so that no handler of Go's runtime runs in the child.
func forkAndCall(flags uintptr, calls *childCalls) (child, pidfd int, failed, err error) {
	var handle int32
	var failure unix.Errno
	flags |= unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PIDFD | uintptr(unix.SIGCHLD)
	pid, errno := forkInto(flags, &handle, calls.list, &failure, uintptr(unix.Getpid()))
	runtime.KeepAlive(calls)
	if errno != 0 {
		return 0, 0, nil, errno
	}
	if failure != 0 {
		_, _ = unix.Wait4(int(pid), nil, 0, nil)
		unix.Close(int(handle))
		return 0, 0, failure, nil
	}
	return int(pid), int(handle), nil, nil
}

// vfork makes a child by clone(2) with CLONE_VM and CLONE_VFORK among the flags, and stores
// a pidfd of it. It returns 0 in the child. The child has no stack of its own, so it never
// returns from the caller.
//
// A copy of the memory, which fork(2) makes, would take 0.5 ms. Package syscall starts its
// children in the same way, but not where they have a user namespace of their own.
//
//go:noescape
func vfork(flags uintptr, pidfd *int32) (child uintptr, errno unix.Errno)

// forkInto is the part of [forkAndCall] in which the child is. The child has this process's
// memory, where the other threads go on, and it has the stack of this one, which waits for
// its execve or its end. So it takes no memory, no lock and no larger stack, and it enters
// the kernel without telling the scheduler, as the child of package syscall does. It leaves
// the error of a call in failure.
//
//go:norace
//go:nosplit
//go:noinline
func forkInto(flags uintptr, pidfd *int32, calls []systemCall, failure *unix.Errno, parent uintptr) (uintptr, unix.Errno) {
	child, errno := vfork(flags, pidfd)
	if errno != 0 || child != 0 {
		return child, errno
	}
	descriptor := uintptr(0)
	for i := range calls {
		call := &calls[i]
		if call.args[0] == opened {
			call.args[0] = descriptor
		}
		if call.number == unix.SYS_EXECVE {
			// Where the parent has ended, nobody waits for what the child becomes.
			if now, _, _ := unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); now != parent {
				errno = unix.ESRCH
				break
			}
		}
		var result uintptr
		result, _, errno = unix.RawSyscall6(call.number, call.args[0], call.args[1], call.args[2], call.args[3], call.args[4], 0)
		if errno != 0 {
			break
		}
		if call.number == unix.SYS_OPENAT {
			descriptor = result
		}
	}
	*failure = errno
	for {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0)
	}
}

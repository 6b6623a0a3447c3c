package process

import (
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/bpf"
)

// forceFork are flags of unshare(2) that make package syscall start a process by fork
// and not by vfork. With vfork the agent's thread would wait in the kernel until the
// process has begun its program, and code, which has the same user, can stop it before.
//
// Package syscall uses fork if CLONE_NEWUSER is among the flags. No kernel knows the other
// bit, so that the mask has no other meaning, and the filter below makes the call succeed
// without an effect.
const forceFork = unix.CLONE_NEWUSER | 1

// Of the kernel's linux/ioprio.h and linux/kcmp.h.
const (
	ioprioProcess = 1 // IOPRIO_WHO_PROCESS
	kcmpFile      = 0 // KCMP_FILE
)

// confined are the rules for the processes of a sandbox in addition to those of the jail.
//
// Most of them concern calls that set or read limits, or choose when and where a process
// runs. The kernel lets a process make these calls for every process of its user, and so
// for the agent: with a limit of memory or time set by the code the sandbox would end, and
// without processor time the limit keeper would act too late. Here a process may make them
// for itself alone, by the number 0: no filter knows its real number.
//
// No process may install another system call filter. The kernel compiles each filter into
// memory from a budget that the whole machine shares and that no control group counts
// (net.core.bpf_jit_limit). If a few sandboxes used it up, no unprivileged program could
// install a filter, and no sandbox could start. EINVAL is the error of a kernel without
// filters, which programs that would confine themselves accept.
//
// No process may take in the children of those that end below it, so that they become the
// agent's: the limit keeper counts generations by parents. The error is that of kernels
// before Linux 3.4.
//
// The jail's filter admits sockets of sock_diag(7), and kcmp(2) of open files, for the
// limit keeper. No process needs them.
func confined() []bpf.Rule {
	own := func(arg int, value uint32) bpf.Check {
		return bpf.Check{Arg: arg, Test: bpf.NoneOf, Values: []uint32{value}, Then: bpf.Errno(unix.EPERM)}
	}
	deny := func(arg int, value uint32, errno unix.Errno) bpf.Check {
		return bpf.Check{Arg: arg, Test: bpf.AnyOf, Values: []uint32{value}, Then: bpf.Errno(errno)}
	}
	return []bpf.Rule{
		bpf.On(unix.SYS_PRLIMIT64, own(0, 0)),
		bpf.On(unix.SYS_SCHED_SETSCHEDULER, own(0, 0)),
		bpf.On(unix.SYS_SCHED_SETPARAM, own(0, 0)),
		bpf.On(unix.SYS_SCHED_SETATTR, own(0, 0)),
		bpf.On(unix.SYS_SCHED_SETAFFINITY, own(0, 0)),
		bpf.On(unix.SYS_SETPRIORITY, own(0, unix.PRIO_PROCESS), own(1, 0)),
		bpf.On(unix.SYS_IOPRIO_SET, own(0, ioprioProcess), own(1, 0)),
		bpf.On(unix.SYS_SECCOMP, deny(0, unix.SECCOMP_SET_MODE_FILTER, unix.EINVAL)),
		bpf.On(unix.SYS_PRCTL, deny(0, unix.PR_SET_SECCOMP, unix.EINVAL), deny(0, unix.PR_SET_CHILD_SUBREAPER, unix.EINVAL)),
		bpf.On(unix.SYS_KCMP, deny(2, kcmpFile, unix.EPERM)),
		bpf.On(unix.SYS_SOCKET, deny(2, unix.NETLINK_SOCK_DIAG, unix.EPROTONOSUPPORT)),
		bpf.On(unix.SYS_UNSHARE, bpf.Check{Test: bpf.AnyOf, Values: []uint32{forceFork}, Then: bpf.Errno(0)}),
	}
}

// confine applies the rules to this thread and to the processes that it starts. The agent's
// other threads set the limits of interpreters.
func confine() error {
	program, err := bpf.Compile(0, confined(), nil)
	if err != nil {
		return err
	}
	return bpf.Install(program, 0)
}

package process

import (
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/bpf"
)

// forceFork are flags of unshare(2) with which package syscall starts a process
// by fork and not by vfork. With vfork the agent's thread would wait in the
// kernel until the process has begun its program, and the code, whose user the
// process has, can stop it before.
//
// Package syscall uses fork where CLONE_NEWUSER is among the flags. The other
// bit is none that a kernel knows, so that the mask stands for nothing else,
// and the filter below has the call succeed without an effect.
const forceFork = unix.CLONE_NEWUSER | 1

// Of the kernel's linux/ioprio.h and linux/kcmp.h.
const (
	ioprioProcess = 1 // IOPRIO_WHO_PROCESS
	kcmpFile      = 0 // KCMP_FILE
)

// confined are the rules for the processes of a sandbox beside those of the
// jail.
//
// Most of them concern calls that set or read limits, or choose when and where a
// process runs. The kernel lets a process make these for every process of its
// user, and so for the agent: with a limit of memory or time set by the code the
// sandbox would end, and without processor time the limit keeper would act too
// late. Here a process may make them for itself alone, which it has to name 0: no
// filter knows its number.
//
// No process may install a further filter of system calls. The kernel compiles
// each filter, in memory from a budget that the whole machine shares and that no
// control group counts (net.core.bpf_jit_limit). A few sandboxes could use it up;
// then nobody without a privilege could install a filter, and no sandbox start.
// EINVAL is the error of a kernel without filters, which programs that would
// confine themselves accept.
//
// The jail's filter allows sockets of sock_diag(7), and kcmp(2) of open files, for
// the limit keeper. No process needs them.
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
		bpf.On(unix.SYS_PRCTL, deny(0, unix.PR_SET_SECCOMP, unix.EINVAL)),
		bpf.On(unix.SYS_KCMP, deny(2, kcmpFile, unix.EPERM)),
		bpf.On(unix.SYS_SOCKET, deny(2, unix.NETLINK_SOCK_DIAG, unix.EPROTONOSUPPORT)),
		bpf.On(unix.SYS_UNSHARE, bpf.Check{Test: bpf.AnyOf, Values: []uint32{forceFork}, Then: bpf.Errno(0)}),
	}
}

// confine applies the rules to this thread and to the processes that it starts.
// The agent's other threads set the limits of interpreters.
func confine() error {
	program, err := bpf.Compile(0, confined())
	if err != nil {
		return err
	}
	return bpf.Install(program, 0)
}

package process

import "golang.org/x/sys/unix"

// noFilters returns the instructions that refuse to install further filters of
// system calls. The kernel compiles each filter, and takes the memory from a
// budget that the whole machine shares and no control group counts
// (net.core.bpf_jit_limit). A few sandboxes could use it up, and then nobody
// without a privilege can install a filter, so that no sandbox starts.
//
// EINVAL is what a kernel without filters answers, and what programs that would
// confine themselves take for that.
func noFilters() []unix.SockFilter {
	return append(
		refuse(unix.SYS_SECCOMP, 0, unix.SECCOMP_SET_MODE_FILTER, unix.EINVAL),
		refuse(unix.SYS_PRCTL, 0, unix.PR_SET_SECCOMP, unix.EINVAL)...)
}

// refuse returns the instructions that fail a system call where the lower 32
// bits of an argument have a value. Otherwise the instruction that follows is
// the next.
func refuse(nr, arg, value uint32, errno unix.Errno) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetNr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetArgs + arg*sizeArg},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
	}
}

package seccomp

import (
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/bpf"
)

// proxyList has the system calls of the proxy of a sandbox's network, a static Go program
// that opens files for reading, connects and copies. Every other call is ENOSYS, and Go's
// runtime then does without it.
//
// Bubblewrap starts the proxy by execve. The proxy makes threads but no processes, maps no
// executable memory, and has only sockets of IP and a socket that lists this machine's
// addresses.
var proxyList = []rule{
	{"read", 0, 63, nil, "sockets and files"},
	{"write", 1, 64, nil, "sockets, events and messages"},
	{"readv", 19, 65, nil, "sockets"},
	{"writev", 20, 66, nil, "sockets"},
	{"pread64", 17, 67, nil, "files"},
	{"lseek", 8, 62, nil, "files"},
	{"close", 3, 57, nil, "descriptors"},
	{"fstat", 5, 80, nil, "descriptors"},
	{"newfstatat", 262, 79, nil, "whether resolv.conf has changed"},
	{"openat", 257, 56, toRead, "resolv.conf, hosts, the policy and certificates"},
	{"readlinkat", 267, 78, nil, "the name of this program"},
	{"fcntl", 72, 25, descriptorFlags, "whether a descriptor blocks"},
	{"pipe2", 293, 59, nil, "splices between two sockets"},
	{"splice", 275, 76, nil, "splices between two sockets"},
	{"eventfd2", 290, 19, nil, "wakes the poller"},
	{"epoll_create1", 291, 20, nil, "the poller"},
	{"epoll_ctl", 233, 21, nil, "the poller"},
	{"epoll_pwait", 281, 22, nil, "the poller"},
	{"poll", 7, absent, nil, "waits for the end of the sandbox"},
	{"ppoll", 271, 73, nil, "waits for the end of the sandbox"},

	{"socket", 41, 198, proxyFamilies, "connections, look-ups, the machine's addresses"},
	{"connect", 42, 203, nil, "connections and look-ups"},
	{"bind", 49, 200, nil, "the socket for the machine's addresses"},
	{"accept4", 288, 242, nil, "connections from the sandbox"},
	{"sendto", 44, 206, nil, "look-ups"},
	{"recvfrom", 45, 207, nil, "look-ups"},
	{"sendmsg", 46, 211, nil, "answers from the address that was asked"},
	{"recvmsg", 47, 212, nil, "the sockets that are handed over, look-ups"},
	{"shutdown", 48, 210, nil, "the end of one direction"},
	{"getsockname", 51, 204, nil, "the address that was meant"},
	{"getpeername", 52, 205, nil, "connections"},
	{"setsockopt", 54, 208, socketOptions, "connections"},
	{"getsockopt", 55, 209, nil, "whether a connection stands"},

	{"mmap", 9, 222, proxyMemory, "memory"},
	{"mprotect", 10, 226, notExecutable, "memory"},
	{"munmap", 11, 215, nil, "memory"},
	{"madvise", 28, 233, nil, "memory"},
	{"clone", 56, 220, threads, "threads"},
	{"futex", 202, 98, requeue, "threads"},
	{"sched_yield", 24, 124, nil, "threads"},
	{"sched_getaffinity", 204, 123, nil, "how many threads run"},
	{"gettid", 186, 178, nil, "threads"},
	{"getpid", 39, 172, nil, "interrupts a thread"},
	{"tgkill", 234, 131, nil, "interrupts a thread"},
	{"rt_sigaction", 13, 134, nil, "signals"},
	{"rt_sigprocmask", 14, 135, nil, "signals"},
	{"rt_sigreturn", 15, 139, nil, "signals"},
	{"sigaltstack", 131, 132, nil, "signals"},
	{"restart_syscall", 219, 128, nil, "signals"},
	{"nanosleep", 35, 101, nil, "time"},
	{"clock_nanosleep", 230, 115, nil, "time"},
	{"clock_gettime", 228, 113, nil, "time, where the kernel maps no code for it"},
	{"getrandom", 318, 278, nil, "keys and the order of maps"},
	{"uname", 63, 160, nil, "what this kernel can do"},
	{"prlimit64", 302, 261, nil, "how many descriptors there can be"},
	{"prctl", 157, 167, undumpable, "keeps credentials from other processes"},
	{"arch_prctl", 158, absent, nil, "where a thread keeps its own"},
	{"execve", 59, 221, nil, "starts the program"},
	{"exit", 60, 93, nil, "ends a thread"},
	{"exit_group", 231, 94, nil, "ends the program"},
}

var (
	toRead = bpf.Verdict{{Arg: 2, Test: bpf.AnyBit, Values: []uint32{
		unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC,
	}, Then: bpf.Errno(unix.EROFS)}}

	descriptorFlags = bpf.Verdict{{Arg: 1, Test: bpf.NoneOf, Values: []uint32{
		unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_SETFL, unix.F_DUPFD_CLOEXEC, unix.F_SETPIPE_SZ, unix.F_GETPIPE_SZ,
	}, Then: bpf.Errno(unix.EINVAL)}}

	proxyFamilies = bpf.Verdict{
		// SOCK_SEQPACKET, SOCK_DCCP and SOCK_PACKET have one of these bits; SOCK_STREAM,
		// SOCK_DGRAM and SOCK_RAW do not.
		{Arg: 1, Test: bpf.AnyBit, Values: []uint32{4 | 8}, Then: bpf.Errno(unix.ESOCKTNOSUPPORT)},
		// Protocol 0 of AF_NETLINK is NETLINK_ROUTE, and of other families the default of
		// the type.
		{Arg: 2, Test: bpf.NoneOf, Values: []uint32{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP}, Then: bpf.Errno(unix.EPROTONOSUPPORT)},
		{Arg: 0, Test: bpf.AnyOf, Values: []uint32{unix.AF_INET, unix.AF_INET6}, Then: allow},
		{Arg: 2, Test: bpf.NoneOf, Values: []uint32{unix.NETLINK_ROUTE}, Then: bpf.Errno(unix.EPROTONOSUPPORT)},
		{Arg: 0, Test: bpf.NoneOf, Values: []uint32{unix.AF_NETLINK}, Then: bpf.Errno(unix.EAFNOSUPPORT)},
	}

	undumpable = bpf.Verdict{{Arg: 0, Test: bpf.NoneOf, Values: []uint32{unix.PR_SET_DUMPABLE}, Then: bpf.Errno(unix.EINVAL)}}

	executable    = bpf.Check{Arg: 2, Test: bpf.AnyBit, Values: []uint32{unix.PROT_EXEC}, Then: eperm}
	notExecutable = bpf.Verdict{executable}
	proxyMemory   = append(bpf.Verdict{executable}, hugePages...)

	threads = bpf.Verdict{
		{Arg: 0, Test: bpf.AnyBit, Values: []uint32{namespaces}, Then: eperm},
		{Arg: 0, Test: bpf.AnyBit, Values: []uint32{unix.CLONE_THREAD}, Then: allow},
		{Test: bpf.Always, Then: eperm},
	}
)

// CompileProxy returns the filter of an architecture for the proxy of a sandbox's network.
// It allows only the calls of [proxyList].
func CompileProxy(arch Arch) ([]unix.SockFilter, error) {
	return compileList(arch, proxyList, nil, always(enosys))
}

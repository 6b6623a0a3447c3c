package seccomp

import (
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/bpf"
)

// newest is the highest number on both architectures when [list] was last reviewed:
// open_tree_attr, of Linux 6.15. Later calls do not exist for the sandbox.
const newest = 467

// absent is the number of a system call that an architecture lacks.
const absent = -1

// list has the system calls that a sandbox for computing never needs, each with the reason
// for its verdict. A call that is not in the list is allowed.
//
// The error is ENOSYS if programs can fall back to an older call, and otherwise EPERM.
var list = []rule{
	// Mounts. All of them are made before the first process starts.
	{"mount", 165, 40, always(eperm), "mounts over what the jail has mounted"},
	{"umount2", 166, 39, always(eperm), "uncovers what lies under a mount"},
	{"pivot_root", 155, 41, always(eperm), "replaces the root"},
	{"chroot", 161, 51, always(eperm), "a way out of a root that holds an open descriptor"},
	{"fsopen", 430, 430, always(eperm), "mounts, first step of the newer calls"},
	{"fsconfig", 431, 431, always(eperm), "parses options of any file system in the kernel"},
	{"fsmount", 432, 432, always(eperm), "mounts"},
	{"fspick", 433, 433, always(eperm), "changes a mount"},
	{"move_mount", 429, 429, always(eperm), "mounts"},
	{"open_tree", 428, 428, always(eperm), "copies a mount tree"},
	{"open_tree_attr", 467, 467, always(eperm), "copies a mount tree and its flags"},
	{"mount_setattr", 442, 442, always(eperm), "takes read-only away"},
	{"statmount", 457, 457, always(enosys), "reads about mounts; no program needs it yet"},
	{"listmount", 458, 458, always(enosys), "reads about mounts; no program needs it yet"},
	{"name_to_handle_at", 303, 264, always(eperm), "names a file so that no mount or path limits who opens it"},
	{"open_by_handle_at", 304, 265, always(eperm), "opens any file of a disk by its number"},
	{"quotactl", 179, 60, always(eperm), "administers disks"},
	{"quotactl_fd", 443, 443, always(eperm), "administers disks"},
	{"sysfs", 139, absent, always(enosys), "lists file systems; replaced by /proc/filesystems"},
	{"ustat", 136, absent, always(enosys), "asks about a device; replaced by statfs"},
	{"cachestat", 451, 451, always(enosys), "tells which store files others have read lately"},
	{"preadv2", 327, 286, readsOfCache, "tells the same, where it reads only what is in memory (RWF_NOWAIT)"},
	{"fanotify_init", 300, 262, always(eperm), "watches whole mounts"},
	{"fanotify_mark", 301, 263, always(eperm), "watches whole mounts"},

	// Namespaces. All that the sandbox needs were made for it.
	{"setns", 308, 268, always(eperm), "enters another namespace"},
	{"unshare", 272, 97, newNamespaceUnshare, "makes a namespace, in which the code would be root over more of the kernel; gives a thread descriptors of its own"},
	{"clone", 56, 220, newNamespace, "the same for a new process or thread; without those flags it is fork"},
	{"clone3", 435, 435, always(enosys), "hides its flags in memory, where no filter sees them; the C library then uses clone"},
	{"close_range", 436, 436, unsharedDescriptors, "gives a thread descriptors of its own"},
	{"sethostname", 170, 161, always(eperm), "for whoever made the namespace"},
	{"setdomainname", 171, 162, always(eperm), "for whoever made the namespace"},

	// Large parts of the kernel with many vulnerabilities that computing does not need.
	{"bpf", 321, 280, always(eperm), "loads programs into the kernel"},
	{"perf_event_open", 298, 241, always(eperm), "measures the machine, others' work included"},
	{"userfaultfd", 323, 282, always(eperm), "stops the kernel in the middle of a copy, the tool of most races"},
	{"io_uring_setup", 425, 425, always(enosys), "makes system calls that no filter sees; programs fall back to epoll"},
	{"io_uring_enter", 426, 426, always(enosys), "goes with io_uring_setup"},
	{"io_uring_register", 427, 427, always(enosys), "goes with io_uring_setup"},
	{"io_setup", 206, 0, always(enosys), "draws on a count that the whole host shares (fs.aio-max-nr)"},
	{"add_key", 248, 217, always(eperm), "the kernel's keys know no namespaces"},
	{"request_key", 249, 218, always(eperm), "starts a program of the host to find a key"},
	{"keyctl", 250, 219, always(eperm), "the kernel's keys know no namespaces"},
	{"modify_ldt", 154, absent, always(eperm), "segments for 16-bit programs"},
	{"uselib", 134, absent, always(enosys), "loads libraries of a format of the nineties"},
	{"lookup_dcookie", 212, 18, always(enosys), "an old profiler's"},
	{"nfsservctl", 180, 42, always(enosys), "an old file server's"},
	{"_sysctl", 156, absent, always(enosys), "replaced by /proc/sys"},
	{"vmsplice", 278, 75, always(enosys), "leaves pages in a pipe that count as no process's memory"},
	{"move_pages", 279, 239, always(eperm), "moves other processes' memory between nodes"},
	{"migrate_pages", 256, 238, always(eperm), "moves other processes' memory between nodes"},
	{"landlock_create_ruleset", 444, 444, always(enosys), "rulesets of 4 MB in the kernel, each behind one descriptor"},
	{"landlock_add_rule", 445, 445, always(enosys), "goes with landlock_create_ruleset"},
	{"landlock_restrict_self", 446, 446, always(enosys), "goes with landlock_create_ruleset"},
	{"prctl", 157, 167, futexHash, "sets the size of a process's futex hash, up to 1 GB in the kernel"},
	{"socket", 41, 198, familiesOfAgent, "every family is a protocol stack; computing uses three"},
	{"socketpair", 53, 199, families, "every family is a protocol stack; computing uses three"},
	{"setsockopt", 54, 208, socketOptions, "takes memory or numbers that the whole machine shares, or starts other protocols"},
	{"fcntl", 72, 25, fileLocks, "takes leases, for which read access is enough: a program of the host that opens the file for writing waits"},
	{"futex", 202, 98, requeue, "moves a waiter on a word of a file, a program of the host too, to where nobody wakes it"},
	{"futex_requeue", 456, 456, always(enosys), "the same"},
	{"mmap", 9, 222, hugePages, "takes huge pages that the operator has reserved; no control group counts them by default"},
	{"shmget", 29, 194, hugeSegments, "the same, as System V shared memory"},
	{"ioctl", 16, 29, terminal, "puts words into a terminal's input, or code into its line"},
	{"personality", 135, 92, oddities, "switches off protections that exec would otherwise set"},

	// Other processes. The agent has the same user as the code, which must not control it.
	{"ptrace", 101, 117, always(eperm), "reads, writes and controls another process"},
	{"process_vm_readv", 310, 270, always(eperm), "reads another process's memory"},
	{"process_vm_writev", 311, 271, always(eperm), "writes another process's memory"},
	{"process_madvise", 440, 440, always(eperm), "drops another process's memory"},
	{"pidfd_getfd", 438, 438, always(eperm), "takes another process's descriptors"},
	{"setrlimit", 160, 164, noCoreLimit, "lets a crash start the host's handler of core dumps"},
	{"prlimit64", 302, 261, noCoreLimits, "lets a crash start the host's handler of core dumps"},
	{"kcmp", 312, 272, sharing, "compares kernel addresses; the limit keeper asks whether two processes share memory or a file"},

	// Memory that belongs neither to a process nor to a file system with a size. At most
	// a control group would see it.
	{"memfd_create", 319, 279, always(enosys), "a file without a file system, also a way to run what was never written"},
	{"memfd_secret", 447, 447, always(enosys), "memory that the kernel itself cannot read"},
	{"msgget", 68, 186, always(enosys), "System V queues: 32,000 of 16 KiB each in the kernel"},
	{"semget", 64, 190, always(enosys), "System V semaphores: gigabytes in the kernel; POSIX ones are files"},
	{"setxattr", 188, 5, attributes, "ACLs of up to 64 KB on each file in memory"},
	{"lsetxattr", 189, 6, attributes, "the same"},
	{"fsetxattr", 190, 7, attributes, "the same"},
	{"setxattrat", 463, 463, always(enosys), "has its size in memory, where no filter sees it; programs use setxattr"},
	{"mbind", 237, 235, always(enosys), "a policy for each page of a file in memory; goes with get_mempolicy"},
	{"set_mempolicy", 238, 237, always(enosys), "goes with get_mempolicy"},
	{"set_mempolicy_home_node", 450, 450, always(enosys), "goes with get_mempolicy"},
	{"get_mempolicy", 239, 236, always(enosys), "by its error libnuma knows a kernel without memory policies (CONFIG_NUMA)"},

	// The machine. A sandbox has no privilege for these calls; the filter also protects
	// against bugs in the kernel.
	{"kexec_load", 246, 104, always(eperm), "starts another kernel"},
	{"kexec_file_load", 320, 294, always(eperm), "starts another kernel"},
	{"init_module", 175, 105, always(eperm), "loads a kernel module"},
	{"finit_module", 313, 273, always(eperm), "loads a kernel module"},
	{"delete_module", 176, 106, always(eperm), "unloads a kernel module"},
	{"reboot", 169, 142, always(eperm), "ends or restarts the machine"},
	{"swapon", 167, 224, always(eperm), "administers memory"},
	{"swapoff", 168, 225, always(eperm), "administers memory"},
	{"acct", 163, 89, always(eperm), "writes a log of every process of the host"},
	{"syslog", 103, 116, always(eperm), "reads the kernel's log: addresses, what other users do"},
	{"settimeofday", 164, 170, always(eperm), "sets the clock"},
	{"clock_settime", 227, 112, always(eperm), "sets the clock"},
	{"clock_adjtime", 305, 266, always(eperm), "sets the clock's speed"},
	{"adjtimex", 159, 171, always(eperm), "sets the clock's speed"},
	{"iopl", 172, absent, always(eperm), "reaches hardware ports"},
	{"ioperm", 173, absent, always(eperm), "reaches hardware ports"},
	{"vhangup", 153, 58, always(eperm), "hangs up a terminal"},
	{"lsm_set_self_attr", 460, 460, always(eperm), "changes the security module's label"},
}

// Flags that make a namespace. In clone's argument the bit of the time
// namespace is part of the signal's number.
const (
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	namespacesUnshared = namespaces | unix.CLONE_NEWTIME
)

var (
	newNamespace = bpf.Verdict{
		{Arg: 0, Test: bpf.AnyBit, Values: []uint32{namespaces}, Then: eperm},
		{Arg: 0, Test: bpf.EachBit, Values: []uint32{unix.CLONE_THREAD, unix.CLONE_FILES}, Then: allow},
		// If a process shares its descriptors with another process, takes locks and
		// ends, the locks stay. The limit keeper counts locks in /proc/locks, which
		// does not show locks of ended processes. A thread with its own descriptors
		// can have as many as a process, but the limit keeper only counts the
		// descriptors of processes.
		{Arg: 0, Test: bpf.AnyBit, Values: []uint32{unix.CLONE_THREAD | unix.CLONE_FILES}, Then: eperm},
	}
	newNamespaceUnshare = bpf.Verdict{{Arg: 0, Test: bpf.AnyBit, Values: []uint32{namespacesUnshared | unix.CLONE_FILES}, Then: eperm}}

	unsharedDescriptors = bpf.Verdict{{Arg: 2, Test: bpf.AnyBit, Values: []uint32{unix.CLOSE_RANGE_UNSHARE}, Then: enosys}}

	// The agent also needs sock_diag(7), which tells the limit keeper the memory of
	// sockets. The agent's own filter refuses it to the code, and with it protocol 4 of
	// other families.
	familiesOfAgent = append(bpf.Verdict{
		{Arg: 2, Test: bpf.AnyOf, Values: []uint32{unix.NETLINK_SOCK_DIAG}, Then: allow},
	}, families...)

	families = bpf.Verdict{
		// Without AF_NETLINK, name resolution assumes that every address family is
		// usable, and the list of network interfaces is an error.
		{Arg: 0, Test: bpf.NoneOf, Values: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6}, Then: bpf.Errno(unix.EAFNOSUPPORT)},
		// 0 is the family's default; 1 is ICMP's echo, and AF_UNIX's own number.
		// SCTP, DCCP, SMC and L2TP are refused.
		{Arg: 2, Test: bpf.NoneOf, Values: []uint32{0, 1, unix.IPPROTO_TCP, unix.IPPROTO_UDP}, Then: bpf.Errno(unix.EPROTONOSUPPORT)},
		// The type alone can choose a protocol or a family: SOCK_PACKET (10) means
		// AF_PACKET, and with protocol 0 SOCK_SEQPACKET (5) means SCTP and SOCK_DCCP (6)
		// DCCP. SOCK_STREAM, SOCK_DGRAM and SOCK_RAW are 1 to 3, without either of the
		// two bits; SOCK_NONBLOCK and SOCK_CLOEXEC are higher bits.
		{Arg: 1, Test: bpf.AnyBit, Values: []uint32{8}, Then: bpf.Errno(unix.ESOCKTNOSUPPORT)},
		{Arg: 0, Test: bpf.AnyOf, Values: []uint32{unix.AF_UNIX}, Then: allow},
		{Arg: 1, Test: bpf.AnyBit, Values: []uint32{4}, Then: bpf.Errno(unix.ESOCKTNOSUPPORT)},
	}

	// ENOPROTOOPT is the error of a kernel that was built without the option.
	socketOptions = bpf.Verdict{
		// Programs that the kernel compiles, in memory that the whole machine shares
		// (net.core.bpf_jit_limit).
		{Arg: 1, Test: bpf.AnyOf, Values: []uint32{unix.SOL_SOCKET}, Decide: bpf.Verdict{{Arg: 2, Test: bpf.AnyOf, Values: []uint32{
			unix.SO_ATTACH_FILTER, unix.SO_ATTACH_BPF, unix.SO_ATTACH_REUSEPORT_CBPF, unix.SO_ATTACH_REUSEPORT_EBPF,
		}, Then: eperm}}},
		// Keys take up to 128 KB of the kernel for each socket (net.core.optmem_max).
		// TCP_ULP puts TLS, SMC or MPTCP under a socket.
		{Arg: 1, Test: bpf.AnyOf, Values: []uint32{unix.IPPROTO_TCP}, Decide: bpf.Verdict{{Arg: 2, Test: bpf.AnyOf, Values: []uint32{
			unix.TCP_MD5SIG, unix.TCP_MD5SIG_EXT, tcpAOAddKey, tcpAODelKey, tcpAOInfo, unix.TCP_ULP,
		}, Then: bpf.Errno(unix.ENOPROTOOPT)}}},
		// The machine has 4,096 flow labels for the code of all users.
		{Arg: 1, Test: bpf.AnyOf, Values: []uint32{unix.IPPROTO_IPV6}, Decide: bpf.Verdict{
			{Arg: 2, Test: bpf.AnyOf, Values: []uint32{ipv6FlowLabelManager}, Then: bpf.Errno(unix.ENOPROTOOPT)},
		}},
	}

	// A tmpfs keeps ACLs in kernel memory that no control group counts. 127 bytes have 15
	// entries, and an ACL for a sandbox's only user and group needs 6. File systems without
	// attributes answer with the same error, which programs that copy files ignore.
	attributes = bpf.Verdict{{Arg: 3, Test: bpf.AnyBit, Values: []uint32{^uint32(127)}, Then: bpf.Errno(unix.EOPNOTSUPP)}}

	// EINVAL is the error of kernels before Linux 6.16.
	futexHash = bpf.Verdict{{Arg: 0, Test: bpf.AnyOf, Values: []uint32{unix.PR_FUTEX_HASH}, Then: bpf.Errno(unix.EINVAL)}}

	// EOPNOTSUPP is the error of file systems without RWF_NOWAIT.
	readsOfCache = bpf.Verdict{{Arg: 5, Test: bpf.AnyBit, Values: []uint32{unix.RWF_NOWAIT}, Then: bpf.Errno(unix.EOPNOTSUPP)}}

	fileLocks = bpf.Verdict{{Arg: 1, Test: bpf.AnyOf, Values: []uint32{
		unix.F_SETLEASE,
		unix.F_NOTIFY,           // notifies of others' changes in a folder
		unix.F_SET_RW_HINT,      // changes the host's inode through a read-only mount
		unix.F_SET_FILE_RW_HINT, // the same, before Linux 5.17
		fSetDelegation,
	}, Then: eperm}, {
		// Locks of open file descriptions do not belong to a process. /proc/locks
		// shows them in every namespace, so that the limit keeper cannot count them.
		// Kernels before Linux 3.15 answer with the same error, and programs fall back
		// to POSIX locks.
		Arg: 1, Test: bpf.AnyOf, Values: []uint32{fOFDSetLock, fOFDSetLockWait}, Then: bpf.Errno(unix.EINVAL),
	}}

	// These operations of futex(2) move waiters to another word, or change a word, without
	// FUTEX_PRIVATE_FLAG. C libraries move only waiters of their own process. 256 is
	// FUTEX_CLOCK_REALTIME.
	requeue = bpf.Verdict{{Arg: 1, Test: bpf.AnyOf, Values: []uint32{
		futexRequeue, futexCmpRequeue, futexWakeOp, futexWaitRequeuePI, futexCmpRequeuePI,
		futexRequeue | 256, futexCmpRequeue | 256, futexWakeOp | 256, futexWaitRequeuePI | 256, futexCmpRequeuePI | 256,
	}, Then: enosys}}

	// ENOMEM is the error of a machine without huge pages.
	hugePages    = bpf.Verdict{{Arg: 3, Test: bpf.AnyBit, Values: []uint32{unix.MAP_HUGETLB}, Then: bpf.Errno(unix.ENOMEM)}}
	hugeSegments = bpf.Verdict{{Arg: 2, Test: bpf.AnyBit, Values: []uint32{shmHugeTLB}, Then: bpf.Errno(unix.ENOMEM)}}

	terminal = bpf.Verdict{{Arg: 1, Test: bpf.AnyOf, Values: []uint32{tiocsti, tioclinux, tioccons, tiocsetd}, Then: eperm}}

	// The launcher sets the limit on core dumps to 1 byte, because with 0 the kernel would
	// start a handler (core(5)). Some programs end if they cannot set the limit to 0, so
	// every attempt to set it seems to succeed.
	noCoreLimit  = bpf.Verdict{{Arg: 0, Test: bpf.AnyOf, Values: []uint32{unix.RLIMIT_CORE}, Then: done}}
	noCoreLimits = bpf.Verdict{
		{Arg: 1, Test: bpf.NoneOf, Values: []uint32{unix.RLIMIT_CORE}, Then: allow},
		// Without a new limit, the call queries the current one.
		{Arg: 2, Test: bpf.NoneOf, Values: []uint32{0}, Then: done},
		{Arg: 2, Upper: true, Test: bpf.NoneOf, Values: []uint32{0}, Then: done},
	}

	// The default personality, and the query of the current one.
	oddities = bpf.Verdict{{Arg: 0, Test: bpf.NoneOf, Values: []uint32{0, 0xffffffff}, Then: eperm}}

	// The agent's own filter leaves kcmpVM to the code.
	sharing = bpf.Verdict{{Arg: 2, Test: bpf.NoneOf, Values: []uint32{kcmpFile, kcmpVM}, Then: eperm}}
)

// From the kernel's asm-generic/ioctls.h, linux/kcmp.h, linux/fcntl.h, linux/futex.h,
// linux/in6.h, linux/shm.h and linux/tcp.h: the same numbers on both architectures.
const (
	tiocsti   = 0x5412
	tioclinux = 0x541c
	tioccons  = 0x541d
	tiocsetd  = 0x5423
	kcmpFile  = 0
	kcmpVM    = 1

	futexRequeue       = 3
	futexCmpRequeue    = 4
	futexWakeOp        = 5
	futexWaitRequeuePI = 11
	futexCmpRequeuePI  = 12

	shmHugeTLB = 0o4000

	tcpAOAddKey          = 38
	tcpAODelKey          = 39
	tcpAOInfo            = 40
	ipv6FlowLabelManager = 32

	fOFDSetLock     = 37
	fOFDSetLockWait = 38
	fSetDelegation  = 1040 // F_SETDELEG, since Linux 6.19
)

package seccomp

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/bpf"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// call is what a filter sees of a system call.
type call struct {
	nr   uint32
	arch uint32
	args [6]uint64
}

// word returns the 32 bits at an offset of struct seccomp_data.
func (c call) word(offset uint32) uint32 {
	switch {
	case offset == 0:
		return c.nr
	case offset == 4:
		return c.arch
	case offset >= 16 && offset < 64 && offset%4 == 0:
		return uint32(c.args[(offset-16)/8] >> (offset % 8 * 8))
	}
	panic(fmt.Sprintf("load at offset %d", offset))
}

// interpret runs a filter as the kernel does, and returns its answer and
// whether it came from the number and the architecture alone.
func interpret(t *testing.T, filter []unix.SockFilter, c call) (answer uint32, constant bool) {
	t.Helper()
	constant = true
	var a uint32
	for at := 0; at < len(filter); at++ {
		op := filter[at]
		taken := false
		switch op.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = c.word(op.K)
			constant = constant && op.K < 8
			continue
		case unix.BPF_RET | unix.BPF_K:
			return op.K, constant
		case unix.BPF_JMP | unix.BPF_JA:
			at += int(op.K)
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			taken = a == op.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			taken = a >= op.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			taken = a&op.K != 0
		default:
			t.Fatalf("instruction %d has the unknown code %#x", at, op.Code)
		}
		if taken {
			at += int(op.Jt)
		} else {
			at += int(op.Jf)
		}
	}
	t.Fatal("the filter runs past its end")
	return 0, false
}

func compile(t *testing.T, arch Arch) []unix.SockFilter {
	t.Helper()
	filter := must.Get(Compile(arch))(t)
	return filter
}

func named(t *testing.T, name string) rule {
	t.Helper()
	for _, r := range list {
		if r.name == name {
			return r
		}
	}
	t.Fatalf("%s is not in the list", name)
	return rule{}
}

// Every number from 0 to far above the newest, on both architectures: an
// answer that the list gives, and nothing else.
func TestEveryNumber(t *testing.T) {
	for _, arch := range Archs {
		t.Run(arch.Name, func(t *testing.T) {
			filter := compile(t, arch)
			t.Logf("%d instructions", len(filter))
			want := map[uint32]rule{}
			for _, r := range list {
				if nr := arch.nr(r); nr != absent {
					want[uint32(nr)] = r
				}
			}
			for nr := uint32(0); nr < 2*newest; nr++ {
				answer, constant := interpret(t, filter, call{nr: nr, arch: arch.audit})
				r, listed := want[nr]
				switch {
				case nr > newest:
					if answer != enosys || !constant {
						t.Errorf("%d, above the newest: %#x", nr, answer)
					}
				case !listed:
					// Constant: the kernel then remembers it.
					if answer != unix.SECCOMP_RET_ALLOW || !constant {
						t.Errorf("%d is not listed: %#x, constant %v", nr, answer, constant)
					}
				case r.verdict[0].Test == bpf.Always:
					if answer != r.verdict[0].Then || !constant {
						t.Errorf("%s: %#x, want %#x", r.name, answer, r.verdict[0].Then)
					}
				default:
					if constant {
						t.Errorf("%s: decided without its arguments", r.name)
					}
				}
			}
		})
	}
}

func TestOtherArchitecturesAreRefused(t *testing.T) {
	for _, arch := range Archs {
		filter := compile(t, arch)
		for name, audit := range map[string]uint32{
			"i386": unix.AUDIT_ARCH_I386, "arm": unix.AUDIT_ARCH_ARM,
			"x86_64": unix.AUDIT_ARCH_X86_64, "aarch64": unix.AUDIT_ARCH_AARCH64, "none": 0,
		} {
			if audit == arch.audit {
				continue
			}
			for nr := range uint32(newest + 10) {
				if answer, _ := interpret(t, filter, call{nr: nr, arch: audit}); answer != unix.SECCOMP_RET_KILL_PROCESS {
					t.Fatalf("%s: call %d of %s: %#x, want the process killed", arch.Name, nr, name, answer)
				}
			}
		}
		// x32 has x86_64's mark, bit 30 in the number, and 512 to 547.
		for nr := range uint32(600) {
			if answer, _ := interpret(t, filter, call{nr: nr | 1<<30, arch: arch.audit}); answer != enosys {
				t.Fatalf("%s: x32 call %d: %#x, want ENOSYS", arch.Name, nr, answer)
			}
		}
		for _, nr := range []uint32{1 << 31, 0xffffffff} {
			if answer, _ := interpret(t, filter, call{nr: nr, arch: arch.audit}); answer != enosys {
				t.Errorf("%s: call %#x: %#x, want ENOSYS", arch.Name, nr, answer)
			}
		}
	}
}

func TestArguments(t *testing.T) {
	family, protocol := bpf.Errno(unix.EAFNOSUPPORT), bpf.Errno(unix.EPROTONOSUPPORT)
	socketType, noMemory := bpf.Errno(unix.ESOCKTNOSUPPORT), bpf.Errno(unix.ENOMEM)
	noOption, noFeature := bpf.Errno(unix.ENOPROTOOPT), bpf.Errno(unix.EOPNOTSUPP)
	type args = [6]uint64
	tests := []struct {
		name string
		args args
		want uint32
	}{
		{"clone", args{uint64(unix.SIGCHLD)}, allow},
		{"clone", args{unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PIDFD | uint64(unix.SIGCHLD)}, allow},
		{"clone", args{unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD | unix.CLONE_SYSVSEM | unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID}, allow},
		{"clone", args{unix.CLONE_NEWUSER}, eperm},
		{"clone", args{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD) | 1<<40}, eperm},
		{"clone", args{unix.CLONE_NEWNS}, eperm},
		{"clone", args{unix.CLONE_NEWPID}, eperm},
		{"clone", args{unix.CLONE_NEWNET}, eperm},
		{"clone", args{unix.CLONE_NEWIPC}, eperm},
		{"clone", args{unix.CLONE_NEWUTS}, eperm},
		{"clone", args{unix.CLONE_NEWCGROUP}, eperm},
		{"clone", args{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, allow},
		{"clone", args{unix.CLONE_FILES | uint64(unix.SIGCHLD)}, eperm},
		{"clone", args{unix.CLONE_VM | unix.CLONE_FILES | unix.CLONE_FS}, eperm},
		{"clone", args{unix.CLONE_THREAD | unix.CLONE_NEWUSER}, eperm},
		{"clone", args{unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_SIGHAND | unix.CLONE_THREAD | unix.CLONE_SYSVSEM}, eperm},
		{"unshare", args{unix.CLONE_FS}, allow},
		{"unshare", args{unix.CLONE_FILES | unix.CLONE_FS}, eperm},
		{"close_range", args{3, 0xffffffff, unix.CLOSE_RANGE_CLOEXEC}, allow},
		{"close_range", args{3, 0xffffffff, unix.CLOSE_RANGE_UNSHARE | unix.CLOSE_RANGE_CLOEXEC}, enosys},
		{"unshare", args{unix.CLONE_NEWTIME}, eperm},
		{"unshare", args{unix.CLONE_NEWUSER}, eperm},
		{"unshare", args{unix.CLONE_NEWNS}, eperm},
		{"socket", args{unix.AF_UNIX, unix.SOCK_STREAM, 0}, allow},
		{"socket", args{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP}, allow},
		{"socket", args{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, allow},
		{"socket", args{1<<32 | unix.AF_INET, unix.SOCK_STREAM, 0}, allow},
		{"socket", args{1<<32 | unix.AF_ALG, unix.SOCK_SEQPACKET, 0}, family},
		{"socket", args{unix.AF_UNSPEC}, family},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, 0}, family},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM}, family},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW | unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG}, allow}, // the agent's
		{"socketpair", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG}, family},
		{"socket", args{unix.AF_PACKET, unix.SOCK_RAW, 0}, family},
		{"socket", args{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, family},
		{"socket", args{unix.AF_BLUETOOTH}, family},
		{"socket", args{0xffffffff}, family},
		{"socket", args{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, protocol},
		{"socket", args{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, protocol},
		{"socket", args{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, protocol},
		{"socketpair", args{unix.AF_UNIX, unix.SOCK_STREAM, 0}, allow},
		{"socketpair", args{unix.AF_TIPC, unix.SOCK_STREAM, 0}, family},
		{"setsockopt", args{0, unix.SOL_SOCKET, unix.SO_REUSEADDR}, allow},
		{"setsockopt", args{0, unix.SOL_SOCKET, unix.SO_RCVBUF}, allow},
		{"setsockopt", args{0, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY}, allow}, // 26, as SO_ATTACH_FILTER is
		{"setsockopt", args{0, unix.IPPROTO_TCP, unix.TCP_NODELAY}, allow},
		{"setsockopt", args{0, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}, eperm},
		{"setsockopt", args{0, 1<<32 | unix.SOL_SOCKET, 1<<32 | unix.SO_ATTACH_FILTER}, eperm}, // the kernel reads 32 bits of each
		{"setsockopt", args{0, unix.SOL_SOCKET, unix.SO_ATTACH_BPF}, eperm},
		{"setsockopt", args{0, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF}, eperm},
		{"setsockopt", args{0, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF}, eperm},
		{"socket", args{unix.AF_INET, unix.SOCK_RAW, 1}, allow}, // the kernel asks for a capability
		{"socket", args{unix.AF_INET, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, 0}, allow},
		{"socket", args{unix.AF_UNIX, unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC, 0}, allow},
		{"socket", args{unix.AF_INET, unix.SOCK_PACKET, 0}, socketType},
		{"socket", args{unix.AF_INET, unix.SOCK_PACKET | unix.SOCK_CLOEXEC, 0}, socketType},
		{"socket", args{unix.AF_UNIX, unix.SOCK_PACKET, 0}, socketType},
		{"socket", args{unix.AF_INET, unix.SOCK_DCCP, 0}, socketType},
		{"socket", args{unix.AF_INET6, unix.SOCK_SEQPACKET | unix.SOCK_NONBLOCK, 0}, socketType},
		{"socket", args{unix.AF_INET, unix.SOCK_RDM, 0}, socketType},
		{"socketpair", args{unix.AF_UNIX, unix.SOCK_SEQPACKET, 0}, allow},
		{"futex", args{0, 0}, allow},              // FUTEX_WAIT
		{"futex", args{0, 1}, allow},              // FUTEX_WAKE
		{"futex", args{0, 9 | 256}, allow},        // FUTEX_WAIT_BITSET
		{"futex", args{0, 6}, allow},              // FUTEX_LOCK_PI
		{"futex", args{0, 3 | 128}, allow},        // the process's own sleepers
		{"futex", args{0, 4 | 128}, allow},        // likewise
		{"futex", args{0, 11 | 128 | 256}, allow}, // likewise
		{"futex", args{0, 3}, enosys},
		{"futex", args{0, 1<<32 | 4}, enosys},
		{"futex", args{0, 5}, enosys},
		{"futex", args{0, 11 | 256}, enosys},
		{"futex", args{0, 12}, enosys},
		{"mmap", args{0, 4096, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS}, allow},
		{"mmap", args{0, 4096, 3, unix.MAP_SHARED | unix.MAP_POPULATE | unix.MAP_NORESERVE}, allow},
		{"mmap", args{0, 4096, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB}, noMemory},
		{"mmap", args{0, 4096, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB | 30<<unix.MAP_HUGE_SHIFT}, noMemory},
		{"shmget", args{0, 4096, 0o1600}, allow},
		{"shmget", args{0, 4096, 0o1600 | 0o4000}, noMemory},
		{"fcntl", args{0, unix.F_SETLK}, allow},
		{"fcntl", args{0, unix.F_SETLKW}, allow},
		{"fcntl", args{0, unix.F_OFD_GETLK}, allow},
		{"fcntl", args{0, unix.F_OFD_SETLK}, bpf.Errno(unix.EINVAL)},
		{"fcntl", args{0, unix.F_OFD_SETLKW}, bpf.Errno(unix.EINVAL)},
		{"fcntl", args{0, unix.F_SETFL}, allow},
		{"fcntl", args{0, unix.F_DUPFD_CLOEXEC}, allow},
		{"fcntl", args{0, unix.F_SETPIPE_SZ}, allow},
		{"fcntl", args{0, unix.F_GETLEASE}, allow},
		{"fcntl", args{0, unix.F_SETLEASE}, eperm},
		{"fcntl", args{0, 1<<32 | unix.F_SETLEASE}, eperm},
		{"fcntl", args{0, unix.F_NOTIFY}, eperm},
		{"fcntl", args{0, unix.F_SET_RW_HINT}, eperm},
		{"fcntl", args{0, unix.F_SET_FILE_RW_HINT}, eperm},
		{"fcntl", args{0, 1040}, eperm}, // F_SETDELEG
		{"ioctl", args{0, unix.TCGETS}, allow},
		{"ioctl", args{0, unix.TIOCGWINSZ}, allow},
		{"ioctl", args{0, unix.TIOCSTI}, eperm},
		{"ioctl", args{0, 1<<32 | unix.TIOCSTI}, eperm}, // the kernel reads 32 bits of it
		{"ioctl", args{0, 0x541c}, eperm},
		{"ioctl", args{0, unix.TIOCCONS}, eperm},
		{"ioctl", args{0, unix.TIOCSETD}, eperm},
		{"personality", args{0}, allow},
		{"personality", args{0xffffffff}, allow},
		{"personality", args{0x0040000}, eperm}, // ADDR_NO_RANDOMIZE
		{"personality", args{0x0400000}, eperm}, // READ_IMPLIES_EXEC
		{"setrlimit", args{unix.RLIMIT_CORE, 1 << 40}, done},
		{"setrlimit", args{1<<32 | unix.RLIMIT_CORE, 1 << 40}, done},
		{"setrlimit", args{unix.RLIMIT_NOFILE, 1 << 40}, allow},
		{"prlimit64", args{0, unix.RLIMIT_CORE, 0, 1 << 40}, allow},
		{"prlimit64", args{0, unix.RLIMIT_CORE, 4096}, done},
		{"prlimit64", args{7, 1<<32 | unix.RLIMIT_CORE, 1 << 40, 1 << 40}, done},
		{"prlimit64", args{0, unix.RLIMIT_NOFILE, 4096}, allow},
		{"setsockopt", args{0, unix.SOL_SOCKET, unix.TCP_MD5SIG}, allow}, // SO_BSDCOMPAT there
		{"setsockopt", args{0, unix.IPPROTO_IP, unix.TCP_MD5SIG}, allow},
		{"setsockopt", args{0, unix.IPPROTO_TCP, unix.SO_ATTACH_FILTER}, allow},
		{"setsockopt", args{0, unix.IPPROTO_TCP, unix.TCP_CONGESTION}, allow},
		{"setsockopt", args{0, unix.IPPROTO_TCP, unix.TCP_MD5SIG}, noOption},
		{"setsockopt", args{0, 1<<32 | unix.IPPROTO_TCP, 1<<32 | unix.TCP_MD5SIG}, noOption},
		{"setsockopt", args{0, unix.IPPROTO_TCP, unix.TCP_MD5SIG_EXT}, noOption},
		{"setsockopt", args{0, unix.IPPROTO_TCP, unix.TCP_ULP}, noOption},
		{"setsockopt", args{0, unix.IPPROTO_TCP, 38}, noOption},  // TCP_AO_ADD_KEY
		{"setsockopt", args{0, unix.IPPROTO_TCP, 40}, noOption},  // TCP_AO_INFO
		{"setsockopt", args{0, unix.IPPROTO_IPV6, 32}, noOption}, // IPV6_FLOWLABEL_MGR
		{"setsockopt", args{0, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS}, allow},
		{"setxattr", args{0, 0, 0, 44}, allow}, // an ACL of five entries
		{"setxattr", args{0, 0, 0, 127}, allow},
		{"setxattr", args{0, 0, 0, 128}, noFeature},
		{"lsetxattr", args{0, 0, 0, 65536}, noFeature},
		{"fsetxattr", args{0, 0, 0, 64004}, noFeature},
		{"prctl", args{unix.PR_SET_NAME}, allow},
		{"prctl", args{unix.PR_FUTEX_HASH, 1}, bpf.Errno(unix.EINVAL)},
		{"preadv2", args{0, 0, 0, 0, 0, unix.RWF_HIPRI}, allow},
		{"preadv2", args{0, 0, 0, 0, 0, unix.RWF_HIPRI | unix.RWF_NOWAIT}, noFeature},
		{"kcmp", args{1, 2, 1}, allow},
		{"kcmp", args{1, 2, 0}, allow}, // the agent's
		{"kcmp", args{1, 2, 2}, eperm},
		{"kcmp", args{1, 2, 8}, eperm},
	}
	for _, arch := range Archs {
		filter := compile(t, arch)
		for _, test := range tests {
			c := call{nr: uint32(arch.nr(named(t, test.name))), arch: arch.audit, args: test.args}
			if got, _ := interpret(t, filter, c); got != test.want {
				t.Errorf("%s: %s%x: %#x, want %#x", arch.Name, test.name, test.args, got, test.want)
			}
		}
	}
}

// The numbers are those of x/sys, which takes them from the kernel's headers.
func TestNumbers(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		t.Fatalf("go list golang.org/x/sys/unix: %v", err)
	}
	folder := strings.TrimSpace(string(out))
	for _, arch := range Archs {
		goarch := map[string]string{"x86_64": "amd64", "aarch64": "arm64"}[arch.Name]
		text := must.Get(os.ReadFile(filepath.Join(folder, "zsysnum_linux_"+goarch+".go")))(t)
		numbers := map[string]int{}
		for _, m := range regexp.MustCompile(`(?m)^\s*SYS_(\w+)\s*= (\d+)$`).FindAllStringSubmatch(string(text), -1) {
			nr := must.Get(strconv.Atoi(m[2]))(t)
			numbers[strings.ToLower(m[1])] = nr
		}
		if len(numbers) < 300 {
			t.Fatalf("%d system calls in x/sys for %s, want more than 300", len(numbers), goarch)
		}
		got, want := map[string]int{}, map[string]int{}
		for _, r := range list {
			got[r.name] = arch.nr(r)
			want[r.name] = absent
			if nr, ok := numbers[r.name]; ok {
				want[r.name] = nr
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", arch.Name, diff)
		}
	}
}

// Each call of the list is tried in every sandbox, and each that is tried there
// as one that no sandbox reaches is on the list: many of them the kernel refuses
// by itself, so that no attempt shows that the filter does.
func TestListIsAttempted(t *testing.T) {
	families, err := filepath.Glob("../../tests/escape/attempts/*.txtar")
	if err != nil || len(families) == 0 {
		t.Fatalf("%d families of attempts, error %v", len(families), err)
	}
	tried := map[string]bool{}
	for _, family := range families {
		text := must.Get(os.ReadFile(family))(t)
		for _, m := range regexp.MustCompile(`\breached\("(\w+)"`).FindAllStringSubmatch(string(text), -1) {
			tried[m[1]] = true
		}
	}
	for _, r := range list {
		// The others are in TestArguments.
		if r.verdict[0].Test == bpf.Always && !tried[r.name] {
			t.Errorf("%s is on the list, and no attempt makes it", r.name)
		}
		delete(tried, r.name)
	}
	for name := range tried {
		t.Errorf("an attempt shows that %s is not reached, and it is not on the list", name)
	}
}

func TestListIsWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range list {
		if seen[r.name] {
			t.Errorf("%s is listed twice", r.name)
		}
		seen[r.name] = true
		if r.reason == "" || len(r.verdict) == 0 {
			t.Errorf("%s has no reason or no verdict", r.name)
		}
		if r.x86 > newest || r.arm > newest {
			t.Errorf("%s is newer than %d, the newest reviewed", r.name, newest)
		}
	}
}

func TestEncode(t *testing.T) {
	got := must.Get(Encode([]unix.SockFilter{{Code: 0x1234, Jt: 5, Jf: 6, K: 0x789abcde}}))(t)
	want := []byte{0x34, 0x12, 5, 6, 0xde, 0xbc, 0x9a, 0x78}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

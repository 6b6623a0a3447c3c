package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/bpf"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Every number, on both architectures: only what is listed exists.
func TestCompileProxy_AllowsTheListAlone(t *testing.T) {
	for _, arch := range Archs {
		filter := must.Get(CompileProxy(arch))(t)
		listed := map[uint32]rule{}
		for _, r := range proxyList {
			if nr := arch.nr(r); nr != absent {
				if other, twice := listed[uint32(nr)]; twice {
					t.Errorf("%s: %s and %s have the number %d", arch.Name, r.name, other.name, nr)
				}
				listed[uint32(nr)] = r
			}
		}
		for nr := range uint32(2 * newest) {
			answer, constant := interpret(t, filter, call{nr: nr, arch: arch.audit})
			r, found := listed[nr]
			switch {
			case !found && (answer != enosys || !constant):
				t.Errorf("%s: %d is not listed: %#x", arch.Name, nr, answer)
			case found && r.verdict == nil && (answer != allow || !constant):
				t.Errorf("%s: %s: %#x", arch.Name, r.name, answer)
			case found && r.verdict != nil && constant:
				t.Errorf("%s: %s is decided without its arguments", arch.Name, r.name)
			}
		}
		if answer, _ := interpret(t, filter, call{nr: 1, arch: unix.AUDIT_ARCH_I386}); answer != unix.SECCOMP_RET_KILL_PROCESS {
			t.Errorf("%s: a call of another architecture: %#x", arch.Name, answer)
		}
	}
}

func TestCompileProxy_ChecksArguments(t *testing.T) {
	type args = [6]uint64
	thread := uint64(unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD)
	family, protocol := bpf.Errno(unix.EAFNOSUPPORT), bpf.Errno(unix.EPROTONOSUPPORT)
	for _, arch := range Archs {
		filter := must.Get(CompileProxy(arch))(t)
		for _, test := range []struct {
			name string
			args args
			want uint32
		}{
			{"openat", args{0, 0, unix.O_RDONLY | unix.O_CLOEXEC | unix.O_DIRECTORY}, allow},
			{"openat", args{0, 0, unix.O_WRONLY}, bpf.Errno(unix.EROFS)},
			{"openat", args{0, 0, unix.O_RDWR}, bpf.Errno(unix.EROFS)},
			{"openat", args{0, 0, unix.O_RDONLY | unix.O_CREAT}, bpf.Errno(unix.EROFS)},
			{"clone", args{thread}, allow},
			{"clone", args{uint64(unix.SIGCHLD)}, eperm},
			{"clone", args{thread | unix.CLONE_NEWUSER}, eperm},
			{"mmap", args{0, 4096, unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANON}, allow},
			{"mmap", args{0, 4096, unix.PROT_READ | unix.PROT_EXEC, unix.MAP_PRIVATE | unix.MAP_ANON}, eperm},
			{"mprotect", args{0, 4096, unix.PROT_EXEC}, eperm},
			{"socket", args{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, unix.IPPROTO_TCP}, allow},
			{"socket", args{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, allow},
			{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW | unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE}, allow},
			{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG}, protocol},
			{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.IPPROTO_TCP}, protocol},
			{"socket", args{unix.AF_UNIX, unix.SOCK_STREAM, 0}, family},
			{"socket", args{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, family},
			{"socket", args{unix.AF_INET, unix.SOCK_SEQPACKET, 0}, bpf.Errno(unix.ESOCKTNOSUPPORT)},
			{"socket", args{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, protocol},
			{"setsockopt", args{0, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}, eperm},
			{"fcntl", args{0, unix.F_GETFL}, allow},
			{"fcntl", args{0, unix.F_SETOWN}, bpf.Errno(unix.EINVAL)},
		} {
			for _, r := range proxyList {
				if r.name != test.name {
					continue
				}
				answer, _ := interpret(t, filter, call{nr: uint32(arch.nr(r)), arch: arch.audit, args: test.args})
				if answer != test.want {
					t.Errorf("%s: %s %v: %#x, want %#x", arch.Name, test.name, test.args, answer, test.want)
				}
			}
		}
	}
}

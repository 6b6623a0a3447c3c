package seccomp

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/bpf"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// childMode says, in the environment of this test's own program, that it is
// to try the list's calls: with the filter, or without it as a control.
const childMode = "SECCOMP_TEST_CHILD"

func TestMain(m *testing.M) {
	mode := os.Getenv(childMode)
	if mode == "" {
		os.Exit(m.Run())
	}
	if err := child(mode); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// thisArch returns the architecture that the test runs on.
func thisArch() Arch {
	if runtime.GOARCH == "arm64" {
		return Archs[1]
	}
	return Archs[0]
}

func child(mode string) error {
	if mode != "without" {
		if err := install(); err != nil {
			return err
		}
	}
	if mode == "exec" {
		return unix.Exec(os.Args[1], os.Args[1:], nil)
	}
	for _, r := range list {
		if nr := thisArch().nr(r); nr != absent {
			fmt.Println(r.name, int(attempt(r.name, nr)))
		}
	}
	return nil
}

// install applies the filter to every thread of this process.
func install() error {
	filter, err := Compile(thisArch())
	if err != nil {
		return err
	}
	return bpf.Install(filter, unix.SECCOMP_FILTER_FLAG_TSYNC)
}

// attempt makes a call with arguments that the kernel cannot accept: where
// nothing stands before it, it fails with an error of its own and changes
// nothing, for root too.
func attempt(name string, nr int) syscall.Errno {
	const wrong = ^uintptr(0)
	args := [6]uintptr{wrong, wrong, wrong, wrong, wrong, wrong}
	switch name {
	case "unshare":
		args[0] = unix.CLONE_NEWNS | 1 // no flag has bit 0
	case "msgget":
		args[0], args[1] = 0x5ec0, 0 // opens a queue that is not there
	case "socket", "socketpair":
		args = [6]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, 0, wrong}
	case "ioctl":
		args[1] = unix.TIOCSTI
	case "futex":
		args[0], args[1] = 0, futexRequeue // no word at this address
	case "mmap":
		args[3] = unix.MAP_ANONYMOUS | unix.MAP_PRIVATE | unix.MAP_HUGETLB | 63<<unix.MAP_HUGE_SHIFT // no such size
	case "shmget":
		args[0], args[1], args[2] = 0, 0, shmHugeTLB // no segment is so small
	case "fcntl":
		args[1] = unix.F_SETLEASE
	case "setsockopt":
		args[1], args[2] = unix.SOL_SOCKET, unix.SO_ATTACH_FILTER
	case "setxattr", "lsetxattr", "fsetxattr":
		args[4] = 0 // the kernel looks at the name
	case "preadv2":
		args[0] = wrong // no such descriptor
	case "prctl":
		args[0], args[1], args[2], args[3], args[4] = unix.PR_FUTEX_HASH, unix.PR_FUTEX_HASH_GET_SLOTS, 0, 0, 0
	case "setrlimit":
		args[0], args[1] = unix.RLIMIT_CORE, 1 // no memory is at this address
	case "prlimit64":
		args[1], args[2] = unix.RLIMIT_CORE, 1
	case "personality":
		args[0] = 0x0040000 // ADDR_NO_RANDOMIZE, of this process alone
	}
	_, _, errno := syscall.Syscall6(uintptr(nr), args[0], args[1], args[2], args[3], args[4], args[5])
	return errno
}

// refusal is the error of a verdict's first refusal.
func refusal(v bpf.Verdict) syscall.Errno {
	for _, c := range v {
		if c.Decide != nil {
			return refusal(c.Decide)
		}
		if c.Then != allow {
			return syscall.Errno(c.Then & unix.SECCOMP_RET_DATA)
		}
	}
	return 0
}

// errnos runs the calls in a process of their own and returns how each ended.
func errnos(t *testing.T, mode string) map[string]syscall.Errno {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{childMode + "=" + mode}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	result := map[string]syscall.Errno{}
	for line := range strings.Lines(string(out)) {
		var name string
		var errno int
		if _, err := fmt.Sscan(line, &name, &errno); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		result[name] = syscall.Errno(errno)
	}
	return result
}

// Each call of the list fails with the list's error, and with another one,
// or not at all, without the filter.
func TestKernelRefuses(t *testing.T) {
	with, without := errnos(t, "with"), errnos(t, "without")
	var shown, indistinct int
	for _, r := range list {
		if thisArch().nr(r) == absent {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			if want := refusal(r.verdict); with[r.name] != want {
				t.Errorf("with the filter: %v, want %v", with[r.name], want)
			}
			t.Logf("without: %d (%v), with: %d (%v)", without[r.name], without[r.name], with[r.name], with[r.name])
			switch {
			case with[r.name] != without[r.name]:
				shown++
			case without[r.name] == syscall.ENOSYS, r.name == "prctl": // this kernel was built without it
				indistinct++
			case os.Getuid() != 0 && without[r.name] == syscall.EPERM: // root's alone
				indistinct++
			default:
				t.Errorf("without the filter: %v too, so that this shows nothing", without[r.name])
			}
		})
	}
	t.Logf("%d calls differ, %d are refused by this kernel by itself", shown, indistinct)
	if shown < 40 {
		t.Errorf("%d calls are shown to be refused by the filter, want at least 40", shown)
	}
}

func TestKernelEndsForeignPrograms(t *testing.T) {
	if thisArch().Name != "x86_64" {
		t.Skip("programs of another architecture are built for x86_64 only")
	}
	if testing.Short() {
		t.Skip("it builds a 32-bit program")
	}
	program := filepath.Join(t.TempDir(), "foreign")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/foreign")
	build.Env = append(os.Environ(), "GOARCH=386", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), program).CombinedOutput(); err != nil || string(out) != "it ran\n" {
		t.Skipf("this kernel runs no 32-bit programs: %v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], program)
	cmd.Env = []string{childMode + "=exec"}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("the program ended with %v: %s", err, out)
	}
	if status := exit.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGSYS {
		t.Errorf("the program ended with %v, want SIGSYS: %s", err, out)
	}
}

// The cost of a system call, with the filter and without, in a process that
// installs it half way.
func BenchmarkSystemCall(b *testing.B) {
	run := func(b *testing.B) {
		for b.Loop() {
			_, _, _ = unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
		}
	}
	b.Run("without", run)
	must.Do(b, install())
	b.Run("with", run)
	b.Run("with/looking at arguments", func(b *testing.B) {
		for b.Loop() {
			_, _, _ = unix.RawSyscall(unix.SYS_IOCTL, ^uintptr(0), 0, 0)
		}
	})
}

package limitkeeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/jailtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// This test's own program runs in a jail: as its first process with a keeper,
// which starts the program again as the code that takes too much.
const role = "LIMITKEEPER_TEST_ROLE"

const (
	memoryLimit = 160 << 20
	taskLimit   = 64
	// Code ends by itself here, with a keeper or without.
	mostMemory = 2 * memoryLimit
	mostTasks  = 160
)

// slow is by how much this machine is slower than others: 30 where it is
// emulated.
var slow = time.Duration(patience.Factor())

// longest is how long a jail lives at most.
var longest = patience.For(15 * time.Second)

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(jailtest.Main(m))
	case "keeper":
		time.AfterFunc(longest, func() { os.Exit(3) })
		report, err := first(os.Args[1:])
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(report)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "code":
		if err := codes[os.Args[1]](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// report is what the first process of a jail saw.
type report struct {
	Crossing *Crossing
	// Bound is the largest figure of a cheap scan, in bytes.
	Bound int64
	// Used is what the code had touched when it ended, in bytes, and After
	// the time between its crossing of the limit and the report of it.
	Used  int64
	After time.Duration
	// Status is the code's exit status, -1 where it was killed.
	Status int
	// Rested says that the sandbox was at rest before the code used anything.
	Rested bool
	// Responsible says that trials found that code took the kernel's memory.
	Responsible bool
}

// first runs code under a keeper until it ends or crosses a limit.
func first(args []string) (*report, error) {
	if os.Getpid() != 1 {
		return nil, fmt.Errorf("process %d is not the first of its namespace", os.Getpid())
	}
	switch args[0] {
	case "resume":
		return &report{}, resumed()
	case "trials":
		return tried(args[1])
	}
	limits := Limits{Memory: memoryLimit, Tasks: taskLimit}
	if len(args) > 1 && args[1] == "without a keeper" {
		limits = Limits{}
	}
	k, err := New(limits, "/workspace", "/dev/shm", "/workspace")
	if err != nil {
		return nil, err
	}
	k.Busy(true)
	s, err := newScanner([]string{"/workspace", "/dev/shm"})
	if err != nil {
		return nil, err
	}
	page, err := counter()
	if err != nil {
		return nil, err
	}
	result := &report{}
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	code := exec.CommandContext(ctx, "/proc/self/exe", args[0])
	code.Env = []string{role + "=code", patience.Variable + "=" + os.Getenv(patience.Variable)}
	// Not through a pipe, which the code's children would hold open.
	code.Stderr = os.Stderr
	late := strings.HasPrefix(args[0], "late")
	begin, err := code.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := code.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	kept := make(chan error, 1)
	go func() {
		kept <- k.Run(ctx, func(c Crossing) {
			at := time.Now()
			_ = unix.Kill(-1, unix.SIGKILL)
			if since := page.crossed.Load(); since != 0 {
				result.After = time.Duration(at.UnixNano() - since)
			}
			result.Crossing = &c
			cancel()
		})
	}()
	if late {
		// The call that started the code has ended.
		k.Busy(false)
		for !k.resting.Load() {
			select {
			case <-ctx.Done():
				return nil, errors.New("the sandbox never comes to rest")
			case <-time.After(time.Millisecond):
			}
		}
		result.Rested = true
	}
	if err := begin.Close(); err != nil {
		return nil, err
	}
	go func() { ended <- code.Wait() }()
	for {
		select {
		case <-ended:
			cancel()
			if err := <-kept; err != nil {
				return nil, err
			}
			result.Status = code.ProcessState.ExitCode()
			result.Used = page.used.Load()
			if result.Status > 0 {
				return nil, fmt.Errorf("the code ended with %d", result.Status)
			}
			return result, nil
		case <-time.After(time.Millisecond):
			if usage, err := s.scan(0); err == nil {
				result.Bound = max(result.Bound, usage.Memory())
			}
		}
	}
}

// resumed stops a process for an exact scan and lets it go on. The error says which
// of the two did not happen.
func resumed() error {
	code := exec.Command("/proc/self/exe", "rest")
	code.Env = []string{role + "=code"}
	if err := code.Start(); err != nil {
		return err
	}
	s, err := newScanner(nil)
	if err != nil {
		return err
	}
	if _, err := s.scan(0); err != nil {
		return err
	}
	stopped := func() bool {
		text := s.read(strconv.Itoa(code.Process.Pid) + "/status")
		return bytes.Contains(text, []byte("\nState:\tT"))
	}
	resume := s.stop()
	if !stopped() {
		return errors.New("the process goes on during an exact scan")
	}
	resume()
	for end := time.Now().Add(longest / 2); stopped(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("the process stays stopped")
		}
	}
	return nil
}

// tried runs code beside trials until they find it responsible, for a part of the time
// that the jail has.
func tried(name string) (*report, error) {
	code := exec.Command("/proc/self/exe", name)
	code.Env, code.Stderr = []string{role + "=code"}, os.Stderr
	if err := code.Start(); err != nil {
		return nil, err
	}
	k, err := New(Limits{Memory: memoryLimit}, "/workspace")
	if err != nil {
		return nil, err
	}
	result := &report{}
	for end := time.Now().Add(longest / 2); !result.Responsible && time.Now().Before(end); {
		if _, err := k.scanner.scan(0); err != nil {
			return nil, err
		}
		if result.Responsible, err = k.try(); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// takeEvents has the kernel keep events of a folder, and drops them, until ctx is done.
func takeEvents(ctx context.Context, folder string) error {
	for ctx.Err() == nil {
		var instances []int
		for range 60 {
			instance, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			if err != nil {
				break // others of this user have the rest
			}
			instances = append(instances, instance)
			if _, err := unix.InotifyAddWatch(instance, folder, unix.IN_CREATE|unix.IN_DELETE); err != nil {
				return err
			}
		}
		for n := 0; n < 8000 && ctx.Err() == nil; n++ {
			name := filepath.Join(folder, strings.Repeat("ab"[n%2:n%2+1], 250))
			if err := errors.Join(unix.Mknod(name, unix.S_IFREG|0o600, 0), unix.Unlink(name)); err != nil {
				return err
			}
		}
		for _, instance := range instances {
			unix.Close(instance)
		}
	}
	return nil
}

// count is the part of a page that the code and the first process share.
type count struct {
	used    atomic.Int64 // bytes touched
	crossed atomic.Int64 // when that passed the limit, in Unix nanoseconds
}

func (c *count) add(n int64) {
	if now := c.used.Add(n); now > memoryLimit && now-n <= memoryLimit {
		c.crossed.Store(time.Now().UnixNano())
	}
}

func counter() (*count, error) {
	file, err := os.OpenFile("/dev/shm/count", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.Truncate(4096); err != nil {
		return nil, err
	}
	page, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*count)(unsafe.Pointer(&page[0])), nil
}

// codes are programs that use memory and processes, each bounded by itself.
var codes = map[string]func() error{
	"anonymous": func() error { return touch(mostMemory, unix.MAP_PRIVATE) },
	"shared":    func() error { return touch(mostMemory, unix.MAP_SHARED) },
	"undumpable": func() error {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return err
		}
		return touch(mostMemory, unix.MAP_PRIVATE)
	},
	"files": func() error {
		file, err := os.Create("/workspace/file")
		if err != nil {
			return err
		}
		chunk := make([]byte, 1<<20)
		for range mostMemory >> 20 {
			if _, err := file.Write(chunk); err != nil {
				return err
			}
		}
		return rest()
	},
	// The first thread of the process ends, and another one goes on.
	"exited leader": func() error {
		return withoutLeader(func() error { return touch(mostMemory, unix.MAP_PRIVATE) })
	},
	"exited leader, shared": func() error {
		return withoutLeader(func() error { return touch(mostMemory, unix.MAP_SHARED) })
	},
	// Neither such a process nor its child takes too much alone.
	"exited leaders": func() error {
		return withoutLeader(func() error {
			child := exec.Command("/proc/self/exe", "exited leader's child")
			child.Env, child.Stderr = os.Environ(), os.Stderr
			if err := child.Start(); err != nil {
				return err
			}
			return touch(memoryLimit*3/4, unix.MAP_PRIVATE)
		})
	},
	"exited leader's child": func() error {
		return withoutLeader(func() error { return touch(memoryLimit*3/4, unix.MAP_PRIVATE) })
	},
	"segments": func() error {
		// No process has more than one of them at a time.
		for range 4 {
			id, err := unix.SysvShmGet(unix.IPC_PRIVATE, mostMemory/4, unix.IPC_CREAT|0o600)
			if err != nil {
				return err
			}
			memory, err := unix.SysvShmAttach(id, 0, 0)
			if err != nil {
				return err
			}
			write(memory)
			if err := unix.SysvShmDetach(memory); err != nil {
				return err
			}
		}
		return rest()
	},
	// Pages that were never written cost no memory, their tables do.
	"tables": func() error {
		const step = 2 << 20 // what one table of 4 KiB maps
		memory, err := unix.Mmap(-1, 0, mostMemory/4096*step, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		if err != nil {
			return err
		}
		if err := unix.Madvise(memory, unix.MADV_NOHUGEPAGE); err != nil {
			return err
		}
		var sum byte
		for at := 0; at < len(memory); at += step {
			sum += memory[at]
		}
		if sum != 0 {
			return fmt.Errorf("fresh memory holds %d", sum)
		}
		return rest()
	},
	"many": func() error {
		memory, err := mapped(mostMemory/8, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		for range 8 {
			if err := fork(memory); err != nil {
				return err
			}
		}
		return rest()
	},
	// Four children write over what they had in common with their parent.
	"copies": func() error {
		memory, err := mapped(mostMemory/4, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		write(memory)
		for range 4 {
			if err := fork(memory); err != nil {
				return err
			}
		}
		return rest()
	},
	"forks": func() error {
		for range mostTasks {
			if err := fork(nil); err != nil {
				return err
			}
		}
		return rest()
	},
	"threads": func() error {
		for range mostTasks {
			go func() {
				_, _ = unix.Poll(nil, -1) // each in a thread of its own
			}()
		}
		return rest()
	},

	// What stays within the limits, though a sum over the processes is above.
	"inherited": func() error {
		memory, err := mapped(memoryLimit/2, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		write(memory)
		for range 4 {
			if err := fork(nil); err != nil {
				return err
			}
		}
		time.Sleep(min(time.Second*slow, longest/2))
		return nil
	},
	"mapped files": func() error {
		file, err := os.Create("/workspace/file")
		if err != nil {
			return err
		}
		if err := file.Truncate(memoryLimit / 2); err != nil {
			return err
		}
		memory, err := unix.Mmap(int(file.Fd()), 0, memoryLimit/2, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		for range 3 {
			if err := fork(memory); err != nil {
				return err
			}
		}
		time.Sleep(min(time.Second*slow, longest/2))
		return nil
	},
	"spawning": func() error {
		memory, err := mapped(memoryLimit/2+2<<20, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		write(memory)
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			// The child has the parent's memory until it has a program.
			if _, err := syscall.ForkExec("/none", []string{"none"}, &syscall.ProcAttr{}); !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("start a program that is not there: %v", err)
			}
		}
		return nil
	},
	// The kernel refuses one process too many, and says so to the code.
	"refused": func() error {
		limits := Rlimits(Limits{Memory: memoryLimit, Tasks: taskLimit})
		if err := Apply(os.Getpid(), limits); err != nil {
			return err
		}
		for n := range mostTasks {
			err := fork(nil)
			if errors.Is(err, unix.EAGAIN) && n > 1 && n < taskLimit {
				return nil
			}
			if err != nil {
				return err
			}
		}
		return fmt.Errorf("%d processes were started, %d are allowed", mostTasks, taskLimit)
	},
	"too large": func() error {
		limits := Rlimits(Limits{Memory: memoryLimit})
		if err := Apply(os.Getpid(), limits); err != nil {
			return err
		}
		if _, err := mapped(minData+1<<20, unix.MAP_PRIVATE); !errors.Is(err, unix.ENOMEM) {
			return fmt.Errorf("memory of more than %d bytes: %v, want ENOMEM", minData, err)
		}
		return nil
	},
	// What waits for its standard input to end uses memory after a time of rest.
	"late": func() error {
		awaitInput()
		return touch(mostMemory, unix.MAP_PRIVATE)
	},
	"late child": func() error {
		memory, err := mapped(mostMemory, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		awaitInput()
		if err := fork(memory); err != nil {
			return err
		}
		return rest()
	},
	"late beside another": func() error {
		child := exec.Command("/proc/self/exe", "late")
		child.Env, child.Stdin, child.Stderr = os.Environ(), os.Stdin, os.Stderr
		if err := child.Start(); err != nil {
			return err
		}
		return child.Wait()
	},
	"events": func() error { return takeEvents(context.Background(), "/workspace") },
	"inodes": func() error {
		for n := range 200_000 {
			if err := unix.Mknod("/workspace/"+strconv.Itoa(n), unix.S_IFREG|0o600, 0); err != nil {
				return err
			}
		}
		return rest()
	},
	"nothing": func() error { return nil },
	"rest":    rest,
}

// The main goroutine keeps the first thread, so that it can end it.
func init() { runtime.LockOSThread() }

// withoutLeader ends this process's first thread and calls f in another one,
// with whose end the process ends.
func withoutLeader(f func() error) error {
	go func() {
		if err := f(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}()
	_, _, errno := unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	return errno
}

// awaitInput waits for the end of standard input, without a thread that runs meanwhile.
func awaitInput() {
	var b [1]byte
	_, _ = syscall.Read(0, b[:])
}

// rest waits to be killed, or for long enough to be seen.
func rest() error {
	time.Sleep(longest / 3)
	return nil
}

func mapped(size, kind int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, kind|unix.MAP_ANON)
}

//go:norace
func write(memory []byte) {
	for at := 0; at < len(memory); at += 4096 {
		memory[at]++
	}
}

// touch fills memory and says how much in the shared page.
func touch(size, kind int) error {
	page, err := counter()
	if err != nil {
		return err
	}
	memory, err := mapped(size, kind)
	if err != nil {
		return err
	}
	const step = 1 << 20
	for len(memory) >= step {
		write(memory[:step])
		page.add(step)
		memory = memory[step:]
	}
	return rest()
}

// fork starts a process that shares its memory with this one until either writes, and that
// writes to each page of some memory. It has one thread and must neither allocate nor wait
// for others, as the race detector does.
//
//go:norace
func fork(memory []byte) error {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		write(memory)
		for {
			syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	return nil
}

// program returns a copy of this program that every user may run: where root
// starts a sandbox, it is another user's.
func program(t testing.TB) string {
	t.Helper()
	text := must.Get(os.ReadFile(os.Args[0]))(t)
	folder := t.TempDir()
	must.Do(t, errors.Join(os.Chmod(filepath.Dir(folder), 0o755), os.Chmod(folder, 0o755)))
	path := filepath.Join(folder, "program")
	must.Write(t, path, string(text), 0o755)
	return path
}

// inJail runs code in a jail under a keeper and returns what the first process saw.
func inJail(t testing.TB, args ...string) report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*longest)
	defer cancel()
	cmd := exec.CommandContext(ctx, jailtest.Sandbox{
		Program: program(t), Args: args,
		Env:         []string{role + "=keeper", patience.Variable + "=" + os.Getenv(patience.Variable)},
		WorkspaceMB: mostMemory>>20 + 8, ShmMB: 8,
	}.Write(t))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var r report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return r
}

// sleeper starts a process that waits for the test's end.
func sleeper(t *testing.T) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "rest")
	cmd.Env = []string{role + "=code"}
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

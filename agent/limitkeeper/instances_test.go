package limitkeeper

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// watch returns an epoll instance with watches of as many files.
func watch(t *testing.T, count int) *os.File {
	t.Helper()
	instance := os.NewFile(uintptr(must.Get(unix.EpollCreate1(unix.EPOLL_CLOEXEC))(t)), "epoll")
	t.Cleanup(func() { instance.Close() })
	for range count {
		fd := must.Get(unix.Eventfd(0, unix.EFD_CLOEXEC))(t)
		t.Cleanup(func() { unix.Close(fd) })
		must.Do(t, unix.EpollCtl(int(instance.Fd()), unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Fd: int32(fd)}))
	}
	return instance
}

func TestInstanceCounter_CountsWatchesOfProcessesThatRan(t *testing.T) {
	own := process{pid: os.Getpid(), task: os.Getpid()}
	var counter instanceCounter
	before, _, _ := counter.count([]process{own}, 0)
	watch(t, 30)
	watch(t, 12)
	if got, _, _ := counter.count([]process{own}, 0); got != before {
		t.Errorf("%d watches of a process that has not run since there were %d", got, before)
	}
	own.time += instancesRun
	if got, _, _ := counter.count([]process{own}, 0); got != before+42 {
		t.Errorf("%d watches, want %d", got, before+42)
	}
	if got, _, _ := counter.count([]process{own}, own.pid); got != 0 {
		t.Errorf("%d watches of the keeper's own", got)
	}
	// The number is another process's.
	other := process{pid: own.pid, task: 1 << 30}
	if got, _, _ := counter.count([]process{other}, 0); got != 0 {
		t.Errorf("%d watches of a process that has ended", got)
	}
}

// An instance that a process has inherited counts once.
func TestDistinct_CountsSharedInstancesOnce(t *testing.T) {
	shared, other := watch(t, 20), watch(t, 5)
	child := exec.Command("sleep", "99")
	child.ExtraFiles = []*os.File{shared}
	must.Do(t, child.Start())
	defer func() { child.Process.Kill(); child.Wait() }()
	inherited := instancesOf(child.Process.Pid)
	if len(inherited) != 1 || inherited[0].watches != 20 {
		t.Fatalf("the child has the instances %+v, want one with 20 watches", inherited)
	}
	own, pid := []instance{}, os.Getpid()
	for _, e := range instancesOf(pid) {
		if e.fd == int(shared.Fd()) || e.fd == int(other.Fd()) {
			own = append(own, e)
		}
	}
	hidden := []instance{{task: pid, fd: -1, watches: 100}, {task: 1, fd: -1, watches: 100}}
	if got, _ := sum(distinct(append(append(own, inherited[0]), hidden...))); got != 225 {
		t.Errorf("%d watches, want 25 and twice 100", got)
	}
}

// An ordinary user does not see the descriptors of root's processes.
func TestInstancesOf_CountsHiddenDescriptorsAsMany(t *testing.T) {
	if _, err := os.ReadDir("/proc/1/fd"); err == nil {
		t.Skip("this user sees the descriptors of process 1")
	}
	if got := instancesOf(1); len(got) != 1 || got[0].fd != -1 {
		t.Errorf("%+v, want one instance in place of what cannot be seen", got)
	}
}

// A shared inotify instance counts once, and each other one too.
func TestInstanceCounter_CountsInotifyInstances(t *testing.T) {
	var shared *os.File
	for range fewQueues + 3 {
		shared = os.NewFile(uintptr(must.Get(unix.InotifyInit1(unix.IN_CLOEXEC))(t)), "inotify")
		t.Cleanup(func() { shared.Close() })
	}
	child := exec.Command("sleep", "99")
	child.ExtraFiles = []*os.File{shared}
	must.Do(t, child.Start())
	defer func() { child.Process.Kill(); child.Wait() }()
	var counter instanceCounter
	own, other := os.Getpid(), child.Process.Pid
	if _, got, _ := counter.count([]process{{pid: other, task: other}}, 0); got != 1 {
		t.Errorf("%d instances of the child, want 1", got)
	}
	if _, got, _ := counter.count([]process{{pid: own, task: own}, {pid: other, task: other}}, 0); got != fewQueues+3 {
		t.Errorf("%d instances, want %d", got, fewQueues+3)
	}
}

// The kernel hides the descriptors of a process that is about to end, and has none left of
// one that waits to be reaped.
func TestInstancesOf_LeavesOutWhatHasEnded(t *testing.T) {
	child := exec.Command("true")
	must.Do(t, child.Start())
	defer child.Wait()
	patience.Until(t, "the child is a zombie", func() bool {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", child.Process.Pid))
		return state(status) == 'Z'
	})
	if got := instancesOf(child.Process.Pid); len(got) != 0 {
		t.Errorf("%+v, want none", got)
	}
}

package limitkeeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Group is a control group for the code alone, with the limits of memory and processes
// already set. The kernel enforces them at once and counts how often it did.
type Group struct {
	limits Limits
	folder int
	memory *os.File // memory.events
	pids   *os.File // pids.events

	mu      sync.Mutex // held while a crossing is reported, so that it is reported once
	killed  int64      // processes that the kernel killed for memory
	asked   int64      // how often code asked for more than its memory
	refused int64      // processes that it refused
}

// OpenGroup opens the group whose folder is a descriptor, which the Group owns.
func OpenGroup(folder int, limits Limits) (*Group, error) {
	unix.CloseOnExec(folder)
	g := &Group{limits: limits, folder: folder}
	for name, file := range map[string]**os.File{"memory.events": &g.memory, "pids.events": &g.pids} {
		fd, err := unix.Openat(folder, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s of the code's control group: %w", name, err)
		}
		*file = os.NewFile(uintptr(fd), name)
	}
	g.rebase()
	return g, nil
}

// Join moves a process that was just started into the group.
func (g *Group) Join(pid int) error {
	fd, err := unix.Openat(g.folder, "cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, strconv.AppendInt(nil, int64(pid), 10))
		unix.Close(fd)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
		return fmt.Errorf("move process %d into the code's control group: %w", pid, err)
	}
	return nil
}

// rebase takes everything counted so far as reported.
func (g *Group) rebase() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.killed, g.refused = g.counts()
	g.asked = eventCount(g.memory, "max ")
}

// counts reads how often the kernel killed and refused, 0 if it cannot be read: the scans
// go on.
func (g *Group) counts() (killed, refused int64) {
	return eventCount(g.memory, "oom_kill "), eventCount(g.pids, "max ")
}

// eventCount returns the number after a name in a file of events.
func eventCount(file *os.File, name string) int64 {
	var buffer [512]byte
	n, _ := file.ReadAt(buffer[:], 0)
	for line := range bytes.Lines(buffer[:n]) {
		if value, found := bytes.CutPrefix(line, []byte(name)); found {
			return number(value)
		}
	}
	return 0
}

// report calls crossed if the kernel has enforced a limit since the last report. Of two
// callers, one reports, and the other returns when that is done.
func (g *Group) report(crossed func(Crossing)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	killed, refused := g.counts()
	c := Crossing{Usage: Usage{Files: g.use()["shmem"]}}
	switch {
	case killed > g.killed:
		// The request that failed was for a page at least.
		c.Limit = frame.Limit{Name: frame.Memory, Value: g.limits.Memory >> 20, Used: g.limits.Memory>>20 + 1}
	case refused > g.refused:
		c.Limit = frame.Limit{Name: frame.PIDs, Value: int64(g.limits.Tasks), Used: int64(g.limits.Tasks) + 1}
	default:
		return
	}
	crossed(c)
	// The code has been killed, but may have tried again until then.
	g.killed, g.refused = g.counts()
}

// spare is how much memory may be left, in bytes, when code that asks for more has all of
// it.
const spare = 2 << 20

// reportFull calls crossed if the code has all of its memory, the kernel cannot reclaim
// any of it, and the code has asked for more since the last call. For buffers of sockets
// the kernel kills no process: it refuses them, after a long search, again and again.
func (g *Group) reportFull(crossed func(Crossing)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.asked
	if g.asked = eventCount(g.memory, "max "); g.asked == before {
		return
	}
	use := g.use()
	if kept := use["anon"] + use["shmem"] + use["kernel"] - use["slab_reclaimable"]; kept <= g.limits.Memory-spare {
		return
	}
	crossed(Crossing{
		Limit: frame.Limit{Name: frame.Memory, Value: g.limits.Memory >> 20, Used: g.limits.Memory>>20 + 1},
		Usage: Usage{Files: use["shmem"]},
	})
	g.killed, g.refused = g.counts()
}

// use returns some of the fields of memory.stat, in bytes (cgroup-v2.rst of the kernel).
func (g *Group) use() map[string]int64 {
	use := map[string]int64{"anon": 0, "kernel": 0, "shmem": 0, "slab_reclaimable": 0}
	fd, err := unix.Openat(g.folder, "memory.stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return use
	}
	file := os.NewFile(uintptr(fd), "memory.stat")
	defer file.Close()
	var text [8192]byte
	n, _ := file.Read(text[:])
	for line := range bytes.Lines(text[:n]) {
		name, value, _ := bytes.Cut(line, []byte(" "))
		if _, wanted := use[string(name)]; wanted {
			use[string(name)] = number(value)
		}
	}
	return use
}

// watch reports crossings until ctx is done.
func (g *Group) watch(ctx context.Context, crossed func(Crossing)) error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("await the events of the code's control group: %w", err)
	}
	defer unix.Close(ends[0])
	stop := context.AfterFunc(ctx, func() { unix.Close(ends[1]) })
	defer func() {
		if stop() {
			unix.Close(ends[1])
		}
	}()
	for ctx.Err() == nil {
		// A change since the last reading of the files ends the wait (cgroup-v2.rst of
		// the kernel, "[un]populated Notification").
		g.report(crossed)
		files := []unix.PollFd{
			{Fd: int32(g.memory.Fd()), Events: unix.POLLPRI}, {Fd: int32(g.pids.Fd()), Events: unix.POLLPRI}, {Fd: int32(ends[0]), Events: unix.POLLIN},
		}
		if _, err := unix.Poll(files, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("await the events of the code's control group: %w", err)
		}
		// Code that tries again and again would keep the agent busy with its events.
		time.Sleep(time.Millisecond)
	}
	return nil
}

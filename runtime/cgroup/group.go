package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// The jail and the agent need these on top of what the code may use, so
	// that the agent's limit keeper acts before the kernel: it ends the code
	// alone and can say why, the kernel ends the whole sandbox.
	ownMemory = 32 << 20 // bytes
	ownTasks  = 32

	// The same for the proxy of a sandbox with a network, its jail and the outer
	// namespace. The proxy's garbage collector keeps it below 24 MiB.
	networkMemory = 32 << 20 // bytes
	networkTasks  = 16

	// period is the time to which a quota of processor time belongs; the
	// kernel's default.
	period = 100 * time.Millisecond
	// minQuota is the smallest quota that the kernel accepts.
	minQuota = time.Millisecond

	// removeEvery is the time between two tries to remove a group, which
	// fails as long as it contains processes.
	removeEvery = 2 * time.Millisecond
)

// Limits are what a sandbox may use; 0 is no limit.
type Limits struct {
	Memory int64   // bytes: of processes, of files in memory, of the kernel for it
	Tasks  int     // processes and threads
	CPUs   float64 // processors
}

// WithNetwork returns the limits of a sandbox of which a network is part: its proxy
// is in the same group, and uses up nothing of what the code may use.
func (l Limits) WithNetwork() Limits {
	return l.With(Limits{Memory: networkMemory, Tasks: networkTasks})
}

// With returns the limits of something that uses more besides, and uses up nothing of
// what the code may use.
func (l Limits) With(more Limits) Limits {
	if l.Memory > 0 {
		l.Memory += more.Memory
	}
	if l.Tasks > 0 {
		l.Tasks += more.Tasks
	}
	return l
}

// Group is a sandbox's control group.
type Group struct {
	folder string
	handle *os.File
}

// New makes a group with these limits, with no process in it.
func (t *Tree) New(limits Limits) (_ *Group, err error) {
	if t == nil {
		return nil, nil
	}
	name := fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), atomic.AddUint64(&t.count, 1))
	g := &Group{folder: filepath.Join(t.folder, name)}
	if err := os.Mkdir(g.folder, 0o755); err != nil {
		return nil, fmt.Errorf("make the sandbox's control group: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Rmdir(g.folder))
		}
	}()
	for _, s := range limits.settings() {
		if s.controller == "cpu" && !t.cpu {
			return nil, &Unavailable{
				Problem: "processors cannot be limited: the controller cpu was not delegated",
				Hint:    "leave cpus out, or delegate it: Delegate=cpu memory pids",
			}
		}
		err := write(g.folder, s.file, s.value)
		if err != nil && !(s.optional && errors.Is(err, os.ErrNotExist)) {
			return nil, fmt.Errorf("set %s of the sandbox's control group to %s: %w", s.file, s.value, err)
		}
	}
	if g.handle, err = os.OpenFile(g.folder, unix.O_DIRECTORY|os.O_RDONLY, 0); err != nil {
		return nil, fmt.Errorf("open the sandbox's control group: %w", err)
	}
	return g, nil
}

// setting is a value for a file of a group.
type setting struct {
	controller, file, value string
	optional                bool // a kernel without it has nothing to limit
}

func (l Limits) settings() []setting {
	var out []setting
	if l.Memory > 0 {
		out = append(out,
			setting{"memory", "memory.max", strconv.FormatInt(l.Memory+ownMemory, 10), false},
			setting{"memory", "memory.swap.max", "0", true},
			setting{"memory", "memory.oom.group", "1", false})
	}
	if l.Tasks > 0 {
		out = append(out, setting{"pids", "pids.max", strconv.Itoa(l.Tasks + ownTasks), false})
	}
	if l.CPUs > 0 {
		quota := max(time.Duration(l.CPUs*float64(period)), minQuota)
		out = append(out, setting{"cpu", "cpu.max", fmt.Sprintf("%d %d", quota.Microseconds(), period.Microseconds()), false})
	}
	return out
}

// Apply makes a process start inside the group, by clone3.
func (g *Group) Apply(attr *syscall.SysProcAttr) {
	if g == nil {
		return
	}
	attr.UseCgroupFD, attr.CgroupFD = true, int(g.handle.Fd())
}

// Killed returns how many processes of the group the kernel killed so far
// because the group used too much memory.
func (g *Group) Killed() (int64, error) {
	if g == nil {
		return 0, nil
	}
	events, err := read(g.folder, "memory.events")
	if err != nil {
		return 0, fmt.Errorf("read the sandbox's control group: %w", err)
	}
	return value(events, "oom_kill"), nil
}

// value returns the number after a key, of lines of a key and a number.
func value(text, key string) int64 {
	for line := range strings.Lines(text) {
		if number, ok := strings.CutPrefix(strings.TrimSpace(line), key+" "); ok {
			n, _ := strconv.ParseInt(number, 10, 64)
			return n
		}
	}
	return 0
}

// Kill ends every process of the group at once.
func (g *Group) Kill() error {
	if g == nil {
		return nil
	}
	err := write(g.folder, "cgroup.kill", "1")
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// Kernels before 5.14 lack cgroup.kill, so each process is killed by its id. One
	// of them is process 1 of the sandbox, whose end ends all the others.
	pids, err := readFields(g.folder, "cgroup.procs")
	for _, word := range pids {
		if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	return err
}

// Close ends every process of the group and removes it. It waits for them
// until ctx is done, and then fails.
func (g *Group) Close(ctx context.Context) error {
	if g == nil {
		return nil
	}
	g.handle.Close()
	err := g.Kill()
	if errors.Is(err, os.ErrNotExist) {
		return nil // removed already
	}
	if err != nil {
		return fmt.Errorf("end the sandbox's control group: %w", err)
	}
	for {
		err := unix.Rmdir(g.folder)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove the sandbox's control group: %w", &os.PathError{Op: "rmdir", Path: g.folder, Err: err})
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes are left in the sandbox's control group %s: %w", g.folder, ctx.Err())
		case <-time.After(removeEvery):
		}
	}
}

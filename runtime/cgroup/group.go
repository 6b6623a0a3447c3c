package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"

	"golang.org/x/sys/unix"
)

const (
	// The jail and the agent need these beside the code's limits, so that the agent's limit keeper
	// acts before the kernel: the limit keeper ends only the code and can say why, while the kernel
	// ends the whole sandbox.
	ownMemory = 32 << 20 // bytes
	ownTasks  = 32

	// The same for the proxy of a sandbox with a network, its jail and the outer
	// namespace. The proxy's garbage collector keeps it below 24 MiB.
	networkMemory = 32 << 20 // bytes
	networkTasks  = 16

	// period is the interval of a processor quota; the kernel's default.
	period = 100 * time.Millisecond
	// minQuota is the smallest quota that the kernel accepts.
	minQuota = time.Millisecond

	// removeEvery is the time between two tries to remove a group, which
	// fails as long as it contains processes.
	removeEvery = 2 * time.Millisecond
)

// Limits bound a sandbox; 0 is no limit.
type Limits struct {
	Memory int64   // bytes: of processes, of files in memory, of the kernel for it
	Tasks  int     // processes and threads
	CPUs   float64 // processors
}

// WithNetwork returns the limits of a sandbox with a network: its proxy is in the same group, and
// must not use up the code's limits.
func (l Limits) WithNetwork() Limits {
	return l.With(Limits{Memory: networkMemory, Tasks: networkTasks})
}

// With returns the limits with room for more, which does not count against the code.
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
	tree   *Tree
	limits Limits

	mu     sync.Mutex
	folder string
	handle *os.File
	leave  func() error // the owner's group, when this one has been removed
	left   string       // an earlier folder that is still there; empty if there is none
}

// New makes a group of an owner with these limits, with no process in it.
func (t *Tree) New(limits Limits, owner Owner) (_ *Group, err error) {
	if t == nil {
		return nil, nil
	}
	if limits.CPUs > 0 && !t.cpu {
		return nil, &Unavailable{
			Problem: "processors cannot be limited: the controller cpu was not delegated",
			Hint:    "leave cpus out, or delegate it: Delegate=cpu memory pids",
		}
	}
	above, leave, err := t.join(owner)
	if err != nil {
		return nil, err
	}
	g := &Group{tree: t, limits: limits, folder: filepath.Join(above, fresh(prefix)), leave: leave}
	if err := makeGroup(g.folder, limits.ofSandbox()); err != nil {
		return nil, errors.Join(fmt.Errorf("make the sandbox's control group: %w", err), leave())
	}
	if g.handle, err = os.OpenFile(g.folder, unix.O_DIRECTORY|os.O_RDONLY, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("open the sandbox's control group: %w", err), unix.Rmdir(g.folder), leave())
	}
	return g, nil
}

// setting is a value for a file of a group.
type setting struct {
	file, value string
	optional    bool // a kernel without it has nothing to limit
}

func (l Limits) settings() []setting {
	var out []setting
	if l.Memory > 0 {
		out = append(out,
			setting{"memory.max", strconv.FormatInt(l.Memory, 10), false},
			setting{"memory.swap.max", "0", true})
	}
	if l.Tasks > 0 {
		out = append(out, setting{"pids.max", strconv.Itoa(l.Tasks), false})
	}
	if l.CPUs > 0 {
		quota := max(time.Duration(l.CPUs*float64(period)), minQuota)
		out = append(out, setting{"cpu.max", fmt.Sprintf("%d %d", quota.Microseconds(), period.Microseconds()), false})
	}
	return out
}

// ofSandbox returns the code's limits as settings of its sandbox, which the kernel ends as a whole.
func (l Limits) ofSandbox() []setting {
	out := l.With(Limits{Memory: ownMemory, Tasks: ownTasks}).settings()
	if l.Memory > 0 {
		out = append(out, setting{"memory.oom.group", "1", false})
	}
	return out
}

// Apply makes a process start inside the group, by clone3.
func (g *Group) Apply(attr *syscall.SysProcAttr) {
	if g == nil {
		return
	}
	host.StartInGroup(attr, int(g.handle.Fd()))
}

// Killed says which processes of a group the kernel killed because memory was short.
type Killed struct {
	Processes int64
	// ByOwner says that the group itself was within its limit: all groups of its owner together
	// reached the owner's.
	ByOwner bool
}

// Killed returns the kills in the group so far.
func (g *Group) Killed() (Killed, error) {
	if g == nil {
		return Killed{}, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	events, err := read(g.folder, "memory.events")
	if err != nil {
		return Killed{}, fmt.Errorf("read the sandbox's control group: %w", err)
	}
	// If the whole machine lacks memory, no group has reached its limit.
	ofOwner, _ := read(filepath.Dir(g.folder), "memory.events.local")
	return Killed{value(events, "oom_kill"), value(events, "oom") == 0 && value(ofOwner, "oom") > 0}, nil
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

// killAll ends every process of a group.
func killAll(folder string) error { return write(folder, "cgroup.kill", "1") }

// Close ends every process of the group and removes it, and its owner's group with the last one. It
// waits for them until ctx is done, and then fails.
func (g *Group) Close(ctx context.Context) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handle.Close()
	err := remove(ctx, g.folder)
	if g.left != "" {
		err = errors.Join(err, remove(ctx, g.left))
	}
	return errors.Join(err, g.leave())
}

// remove ends every process of a group and removes it.
func remove(ctx context.Context, folder string) error {
	err := killAll(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil // removed already
	}
	if err != nil {
		return fmt.Errorf("end the sandbox's control group: %w", err)
	}
	for {
		err := unix.Rmdir(folder)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove the sandbox's control group: %w", &os.PathError{Op: "rmdir", Path: folder, Err: err})
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes are left in the sandbox's control group %s: %w", folder, ctx.Err())
		case <-time.After(removeEvery):
		}
	}
}

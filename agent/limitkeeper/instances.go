package limitkeeper

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// This file counts epoll and inotify instances.
//
// The kernel counts the watches of epoll instances for each user of the host
// (fs.epoll.max_user_watches). If a user has used them up, no program of that user
// can watch anything and no agent can start. /proc/PID/fdinfo shows the watches.
//
// The kernel keeps the events of an inotify instance until they are read. No file
// shows how many there are, so each instance counts as a full queue.
//
// An instance that no process has open, because it waits in a socket to be received
// (SCM_RIGHTS), is not found.

const (
	// instancesTime bounds the processor time of a count. The next count begins
	// with the remaining processes.
	instancesTime = mappingsTime
	// instancesRun is the processor time in ns that a process uses between two
	// counts. It takes half a microsecond to add a watch.
	instancesRun = 1e6
	// maxCompared bounds how many instances are compared with each other. Beyond it,
	// an instance that processes share counts for each of them.
	maxCompared = 4096
	// kcmpFile is KCMP_FILE: kcmp(2) compares the open files of two descriptors.
	kcmpFile = 0
	// queueCost is the size of a full inotify queue, in bytes: 16,384 events
	// (fs.inotify.max_queued_events) with the longest names. A program that watches
	// files has one to three instances.
	queueCost = 16_384 * 512
	fewQueues = 4
)

// instanceCounter counts the instances of a sandbox. It is not safe for concurrent
// use.
type instanceCounter struct {
	known map[int]counted // by process
	round int             // counts so far
}

type counted struct {
	time      int64 // its processor time then, in ns
	round     int   // when it was counted
	instances []instance
}

// instance is an epoll or inotify instance that a process has open.
type instance struct {
	task, fd int // fd is -1 if the process hides its descriptors
	watches  int // of an epoll instance
	queues   int // 1 for an inotify instance
}

// count returns the watches of epoll instances and the number of inotify instances,
// and whether processes were left out for lack of time.
func (c *instanceCounter) count(found []process, self int) (watches, queues int, left bool) {
	c.round++
	alive := make(map[int]counted, len(found))
	var due []process
	for _, p := range found {
		if p.pid == self {
			continue
		}
		w, known := c.known[p.pid]
		known = known && w.time <= p.time // otherwise the number was reused
		if known {
			alive[p.pid] = w
		}
		if !known || p.time-w.time >= instancesRun {
			due = append(due, p)
		}
	}
	c.known = alive
	slices.SortStableFunc(due, func(a, b process) int { return alive[a.pid].round - alive[b.pid].round })
	rest := newBudget(instancesTime)
	for _, p := range due {
		if left = rest.over(); left {
			break
		}
		alive[p.pid] = counted{time: p.time, round: c.round, instances: instancesOf(p.task)}
	}
	var all []instance
	for _, w := range alive {
		all = append(all, w.instances...)
	}
	watches, queues = sum(all)
	if watches > frame.MaxEpollWatches || queues > fewQueues {
		watches, queues = sum(distinct(all))
	}
	return watches, queues, left
}

func sum(all []instance) (watches, queues int) {
	for _, i := range all {
		watches += i.watches
		queues += i.queues
	}
	return watches, queues
}

// distinct removes instances that another process has open too: a fork shares those
// of its parent.
func distinct(all []instance) []instance {
	if len(all) > maxCompared {
		return all
	}
	slices.SortFunc(all, func(a, b instance) int { return cmp.Or(compareFiles(a, b), b.watches-a.watches) })
	return slices.CompactFunc(all, func(a, b instance) bool { return compareFiles(a, b) == 0 })
}

// compareFiles orders open files as the kernel does. Files that the kernel does not
// compare come first, in the order of the processes.
func compareFiles(a, b instance) int {
	if a.fd < 0 || b.fd < 0 {
		return cmp.Or(cmp.Compare(min(a.fd, 0), min(b.fd, 0)), cmp.Compare(a.task, b.task))
	}
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a.task), uintptr(b.task), kcmpFile, uintptr(a.fd), uintptr(b.fd), 0)
	switch {
	case errno == 0 && order == 0:
		return 0
	case errno == 0 && order == 1:
		return -1
	case errno == 0 && order == 2:
		return 1
	}
	return cmp.Or(cmp.Compare(a.task, b.task), cmp.Compare(a.fd, b.fd))
}

// instancesOf returns the instances that a process or a thread has open. If it hides
// its descriptors, which code can bring about, half of them count as watched by each of
// the other half, and as inotify instances too. The descriptors of a process that is about
// to end are hidden as well: it has given its memory back.
func instancesOf(task int) (instances []instance) {
	folder := "/proc/" + strconv.Itoa(task)
	dir, err := os.Open(folder + "/fd")
	if hasEnded(err) {
		return nil
	}
	if err != nil {
		status, _ := bounded.ReadFile(folder+"/status", maxStatus)
		if !hasMemory(status) {
			return nil
		}
		half := int(openFiles(task, status) / 2)
		return []instance{{task: task, fd: -1, watches: half * half, queues: half}}
	}
	defer dir.Close()
	target := make([]byte, 64)
	for {
		names, err := dir.Readdirnames(maxNames)
		for _, name := range names {
			n, err := unix.Readlinkat(int(dir.Fd()), name, target)
			if err != nil {
				continue
			}
			fd, _ := strconv.Atoi(name)
			switch string(target[:n]) {
			case "anon_inode:[eventpoll]":
				watches := countLines(folder+"/fdinfo/"+name, frame.MaxEpollWatches+1, func(line []byte) bool {
					return bytes.HasPrefix(line, []byte("tfd:"))
				})
				instances = append(instances, instance{task: task, fd: fd, watches: watches})
			case "anon_inode:inotify":
				instances = append(instances, instance{task: task, fd: fd, queues: 1})
			}
		}
		if err != nil {
			return instances
		}
	}
}

package limitkeeper

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

// The kernel counts the watches of epoll instances for each user of the host
// (fs.epoll.max_user_watches). Where a user has as many as allowed, no program of
// that user can watch anything, and no agent can start. This file counts the
// watches of a sandbox, which the kernel shows in /proc/PID/fdinfo.
//
// An instance that no process has open is not found: one that waits in a socket to
// be received (SCM_RIGHTS).

const (
	// epollTime bounds a count of watches, in processor time. The processes that
	// are left are the first of the next count.
	epollTime = mappingsTime
	// epollRun is the processor time in ns that a process uses between two counts
	// of its watches. To add a watch takes half a microsecond.
	epollRun = 1e6
	// maxCompared bounds the instances that are compared with each other. Beyond
	// it, one that processes share counts for each of them.
	maxCompared = 4096
	// kcmpFile is KCMP_FILE: kcmp(2) compares the open files of two descriptors.
	kcmpFile = 0
)

// epollCounter counts the watches of a sandbox. It is not safe for concurrent use.
type epollCounter struct {
	known map[int]watched // by process
	round int             // counts so far
}

// watched is what was found in a process.
type watched struct {
	time      int64 // the processor time that it had used then, in ns
	round     int   // when it was counted
	instances []epoll
}

// epoll is an epoll instance that a process has open.
type epoll struct {
	task, fd int // fd is -1 where the process does not show its descriptors
	watches  int
}

// count returns the number of watches of the processes, at most a little more than
// frame.MaxEpollWatches for each instance, and whether there was no time to read all.
func (c *epollCounter) count(found []process, self int) (total int, left bool) {
	c.round++
	alive := make(map[int]watched, len(found))
	var due []process
	for _, p := range found {
		if p.pid == self {
			continue
		}
		w, known := c.known[p.pid]
		known = known && w.time <= p.time // otherwise another process has the number
		if known {
			alive[p.pid] = w
		}
		if !known || p.time-w.time >= epollRun {
			due = append(due, p)
		}
	}
	c.known = alive
	slices.SortStableFunc(due, func(a, b process) int { return alive[a.pid].round - alive[b.pid].round })
	rest := newBudget(epollTime)
	for _, p := range due {
		if left = rest.over(); left {
			break
		}
		alive[p.pid] = watched{time: p.time, round: c.round, instances: epollsOf(p.task)}
	}
	var all []epoll
	for _, w := range alive {
		all = append(all, w.instances...)
	}
	for _, e := range all {
		total += e.watches
	}
	if total <= frame.MaxEpollWatches || len(all) > maxCompared {
		return total, left
	}
	return distinct(all), left
}

// distinct returns the number of watches where processes may share instances, as a
// process does with the processes that it forks.
func distinct(all []epoll) (total int) {
	slices.SortFunc(all, func(a, b epoll) int { return cmp.Or(compareFiles(a, b), b.watches-a.watches) })
	for i, e := range all {
		if i == 0 || compareFiles(all[i-1], e) != 0 {
			total += e.watches
		}
	}
	return total
}

// compareFiles orders open files as the kernel does. What the kernel does not compare
// comes first, in the order of the processes.
func compareFiles(a, b epoll) int {
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

// epollsOf returns the epoll instances that a process or a thread has open. Where it
// keeps others from seeing its descriptors, which code can bring about, it counts as
// one that watches each of one half of them by each of the other half.
func epollsOf(task int) (instances []epoll) {
	folder := "/proc/" + strconv.Itoa(task)
	dir, err := os.Open(folder + "/fd")
	if hasEnded(err) {
		return nil
	}
	if err != nil {
		status, _ := bounded.ReadFile(folder+"/status", maxStatus)
		half := int(openFiles(task, status) / 2)
		return []epoll{{task: task, fd: -1, watches: half * half}}
	}
	defer dir.Close()
	target := make([]byte, 64)
	for {
		names, err := dir.Readdirnames(maxNames)
		for _, name := range names {
			n, err := unix.Readlinkat(int(dir.Fd()), name, target)
			if err != nil || string(target[:n]) != "anon_inode:[eventpoll]" {
				continue
			}
			fd, _ := strconv.Atoi(name)
			watches := countLines(folder+"/fdinfo/"+name, frame.MaxEpollWatches+1, func(line []byte) bool {
				return bytes.HasPrefix(line, []byte("tfd:"))
			})
			instances = append(instances, epoll{task: task, fd: fd, watches: watches})
		}
		if err != nil {
			return instances
		}
	}
}

package limitkeeper

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// kcmpVM asks kcmp(2) whether two processes have one memory.
const kcmpVM = 1

// budget is an amount of this thread's processor time. Time that passes
// while others have the processor is not the look's own, and they take no
// memory meanwhile either.
type budget struct {
	begin time.Duration
	size  time.Duration
}

func newBudget(size time.Duration) budget { return budget{spentByThread(), size} }

func (b budget) spent() time.Duration { return spentByThread() - b.begin }
func (b budget) over() bool           { return b.spent() > b.size }

func spentByThread() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano())
}

// exact returns the memory of the processes that the last look found, in
// which a page that n processes share counts 1/n for each. Of those that it
// cannot ask, or not within its budget, it takes the first look's figure. It
// stops when there is more than enough.
func (g *gauge) exact(size time.Duration, enough int64) (total int64, cost time.Duration) {
	found := slices.Clone(g.found) // looks while it waits find others
	tasks := map[int]int{}
	for _, p := range found {
		tasks[p.pid] = p.task
	}
	for _, p := range found {
		if parent, ok := tasks[p.parent]; ok && sameMemory(p.task, parent) {
			continue // a child of vfork, before its exec
		}
		memory := p.memory
		if cost < size {
			a := g.ask(p, size-cost)
			if a.ok {
				memory = a.memory
			}
			cost += a.cost
		}
		total += p.tables + memory
		if total > enough {
			break
		}
	}
	return total, cost
}

// answer is what a process has, if ok, and what it cost to learn.
type answer struct {
	memory int64
	cost   time.Duration
	ok     bool
}

// holdTime bounds how long a process may keep whoever asks waiting: as long as
// one in the middle of a fork may be on a busy machine.
const holdTime = stopTime

// ask has a process's mappings read by another goroutine, for the kernel lets
// nobody read them while the process changes them, and code can have it do so
// for as long as it likes. What is then taken is no longer waited for: the
// answer has cost all that it may.
func (g *gauge) ask(p process, size time.Duration) answer {
	answers := make(chan answer, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		rest := newBudget(size)
		memory, ok := shared(rest, p.task)
		if memory == 0 && p.task != p.pid {
			ok = false // the thread has ended, and others may have the memory
		}
		answers <- answer{memory, rest.spent(), ok}
	}()
	// What each process has when it is first seen here: a fork makes new ones,
	// and none that has more.
	first := map[int]int64{}
	for end := time.Now().Add(size + holdTime); time.Now().Before(end); {
		select {
		case a := <-answers:
			return a
		case <-time.After(nearPause):
		}
		if _, err := g.bound(0); err != nil {
			continue
		}
		for _, p := range g.found {
			if had, seen := first[p.pid]; !seen {
				first[p.pid] = p.memory
			} else if p.memory > had+takes {
				return answer{cost: size}
			}
		}
	}
	return answer{cost: size}
}

// stopTime bounds the wait for processes to stop. On a busy machine one may
// be in the middle of a fork for long, and be counted twice; it takes no new
// memory there.
const stopTime = time.Second

// takes is by how much a process has grown that takes memory, in bytes: more
// than one that is about to stop.
const takes = 8 << 20

// stop stops every other process of the namespace until resume is called. It
// does nothing unless this process is the namespace's first, for others may
// not be its own.
func (g *gauge) stop() (resume func()) {
	if g.self != 1 || unix.Kill(-1, unix.SIGSTOP) != nil {
		return func() {}
	}
	for end := time.Now().Add(stopTime); !g.settled() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return func() { _ = unix.Kill(-1, unix.SIGCONT) }
}

// settled says whether every process of the last look has stopped or ended; or
// whether waiting is no use, for one goes on and takes memory, as in the middle
// of a system call that fills a mapping.
func (g *gauge) settled() bool {
	all := true
	for _, p := range g.found {
		if p.pid == g.self {
			continue
		}
		text, _ := g.status(p.pid)
		if len(text) == 0 || bytes.IndexByte([]byte("TtZX"), state(text)) >= 0 {
			continue
		}
		if resident(text) > p.memory+takes {
			return true
		}
		all = false
	}
	return all
}

func sameMemory(a, b int) bool {
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	return errno == 0 && order == 0
}

// mapping is one part of a process's memory; sizes in KiB.
type mapping struct {
	path                 string
	inode                bool // it maps a file
	pss, anonymous, swap int64
}

// memory returns a mapping's own memory, in bytes: without pages of files
// that lie in a file system, which count there or are the host's.
func (m mapping) memory() int64 {
	size := m.pss
	if m.inode && !unnamed(m.path) {
		size = min(m.pss, m.anonymous)
	}
	return (size + m.swap) << 10
}

// unnamed says whether a mapped file lies in no file system that has a size.
// These names are the kernel's own; a file that bears one is counted twice.
func unnamed(path string) bool {
	for _, prefix := range []string{"/dev/zero (deleted)", "[anon_shmem:", "/memfd:", "/anon_hugepage (deleted)"} {
		if len(path) >= len(prefix) && path[:len(prefix)] == prefix {
			return true
		}
	}
	return false
}

// shared returns a process's memory by its mappings. It fails for processes
// that cannot be dumped, and where it would cost more than the budget.
func shared(rest budget, pid int) (int64, bool) {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/smaps")
	if gone(err) {
		return 0, true
	}
	if err != nil {
		return 0, false
	}
	defer file.Close()
	var (
		total int64
		now   mapping
		lines = bufio.NewReaderSize(file, 64<<10)
	)
	for n := 0; ; n++ {
		if n%1024 == 0 && rest.over() {
			return 0, false
		}
		line, err := lines.ReadSlice('\n')
		if err == io.EOF {
			return total + now.memory(), true
		}
		if gone(err) {
			return 0, true
		}
		if err != nil {
			return 0, false
		}
		if name := line[0]; name < 'A' || name > 'Z' { // an address: the next mapping
			total += now.memory()
			now = header(line)
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "Pss":
			now.pss = kilobytes(value)
		case "Anonymous":
			now.anonymous = kilobytes(value)
		case "SwapPss":
			now.swap = kilobytes(value)
		}
	}
}

// gone says that a process has ended since it was found.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// header reads the first line of a mapping: addresses, permissions, offset,
// device, inode, path.
func header(line []byte) mapping {
	var words [5][]byte
	rest := line
	for i := range words {
		words[i], rest, _ = bytes.Cut(bytes.TrimLeft(rest, " "), []byte(" "))
	}
	inode := bytes.TrimSpace(words[4])
	return mapping{
		inode: !bytes.Equal(inode, []byte("0")),
		path:  string(bytes.TrimSpace(rest)),
	}
}

func kilobytes(value []byte) int64 {
	number, _, _ := bytes.Cut(bytes.TrimSpace(value), []byte(" "))
	n, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

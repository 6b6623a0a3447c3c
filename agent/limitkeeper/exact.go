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
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// kcmpVM is KCMP_VM: kcmp(2) compares the memory of two processes.
	kcmpVM = 1
	// stopTime bounds the wait for processes to stop. On a busy machine one may
	// be in the middle of a fork for long, and be counted twice; it takes no new
	// memory there.
	stopTime = time.Second
	// answerTime bounds how long a process may delay the read of its mappings,
	// beyond the time that the read may cost.
	answerTime = stopTime
	// growing is by how much a process has grown that takes memory, in bytes: by
	// more than a process that is about to stop.
	growing = 8 << 20
)

// budget is an amount of this thread's processor time. Time in which others
// have the processor does not count.
type budget struct {
	begin time.Duration
	size  time.Duration
}

func newBudget(size time.Duration) budget { return budget{threadTime(), size} }

func (b budget) spent() time.Duration { return threadTime() - b.begin }
func (b budget) over() bool           { return b.spent() > b.size }

func threadTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano())
}

// exact returns the memory of the processes that the last scan found, in which
// a page that n processes share counts 1/n for each. For a process whose
// mappings cannot be read, or not within the budget, it takes the figure of the
// scan. It stops when the total is more than enough.
func (s *scanner) exact(size time.Duration, enough int64) (total int64, cost time.Duration) {
	found := slices.Clone(s.found) // ask scans again
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
			a := s.ask(p, size-cost)
			if a.ok {
				memory = a.memory
			}
			cost += a.cost
		}
		total += p.kernel + memory
		if total > enough {
			break
		}
	}
	return total, cost
}

// answer is the memory of a process, if ok, and what it cost to find out.
type answer struct {
	memory int64
	cost   time.Duration
	ok     bool
}

// ask has the mappings of a process read by another goroutine. The kernel lets
// nobody read them while the process changes them, and code can keep it in that
// state for as long as it likes. Where a process takes memory meanwhile, ask
// gives up: the answer has cost all that it may.
func (s *scanner) ask(p process, size time.Duration) answer {
	answers := make(chan answer, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		rest := newBudget(size)
		memory, ok := readMappings(rest, p.task)
		if memory == 0 && p.task != p.pid {
			ok = false // the thread has ended, and others may have the memory
		}
		answers <- answer{memory, rest.spent(), ok}
	}()
	// What each process has when it is first seen here. A fork makes new
	// processes, and none that grows.
	first := map[int]int64{}
	for end := time.Now().Add(size + answerTime); time.Now().Before(end); {
		select {
		case a := <-answers:
			return a
		case <-time.After(nearPause):
		}
		if _, err := s.scan(0); err != nil {
			continue
		}
		for _, p := range s.found {
			if had, seen := first[p.pid]; !seen {
				first[p.pid] = p.memory
			} else if p.memory > had+growing {
				return answer{cost: size}
			}
		}
	}
	return answer{cost: size}
}

// stop stops every other process of the namespace until resume is called. It
// does nothing unless this process is the namespace's first: elsewhere the
// others may not be its own.
func (s *scanner) stop() (resume func()) {
	if s.self != 1 || unix.Kill(-1, unix.SIGSTOP) != nil {
		return func() {}
	}
	for end := time.Now().Add(stopTime); !s.stopped() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return func() { _ = unix.Kill(-1, unix.SIGCONT) }
}

// stopped reports whether every process of the last scan has stopped or ended. It
// also says so where waiting is useless, because a process goes on and takes
// memory: in the middle of a system call that fills a mapping.
func (s *scanner) stopped() bool {
	all := true
	for _, p := range s.found {
		if p.pid == s.self {
			continue
		}
		text, _ := s.status(p.pid)
		if len(text) == 0 || strings.IndexByte("TtZX", state(text)) >= 0 {
			continue
		}
		if resident(text) > p.memory+growing {
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

// mapping is one mapping of a process, as /proc/PID/smaps shows it; sizes are
// in KiB.
type mapping struct {
	path                 string
	inode                bool // it maps a file
	pss, anonymous, swap int64
}

// memory returns the bytes of a mapping that count as the process's. Pages of a
// file that lies in a file system do not: they count there or are the host's.
func (m mapping) memory() int64 {
	size := m.pss
	if m.inode && !isUnnamed(m.path) {
		size = min(m.pss, m.anonymous)
	}
	return (size + m.swap) << 10
}

// isUnnamed reports whether a mapped file lies in no file system that has a size.
// These names are the kernel's own; a file that bears one is counted twice.
func isUnnamed(path string) bool {
	for _, prefix := range []string{"/dev/zero (deleted)", "[anon_shmem:", "/memfd:", "/anon_hugepage (deleted)"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// readMappings returns the memory of a process or a thread by its mappings, in bytes.
// It fails for a process that cannot be dumped, and where it would cost more
// than the budget.
func readMappings(rest budget, pid int) (int64, bool) {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/smaps")
	if hasEnded(err) {
		return 0, true
	}
	if err != nil {
		return 0, false
	}
	defer file.Close()
	var (
		total   int64
		current mapping
		lines   = bufio.NewReaderSize(file, 64<<10)
	)
	for n := 0; ; n++ {
		if n%1024 == 0 && rest.over() {
			return 0, false
		}
		line, err := lines.ReadSlice('\n')
		if err == io.EOF {
			return total + current.memory(), true
		}
		if hasEnded(err) {
			return 0, true
		}
		if err != nil {
			return 0, false
		}
		if first := line[0]; first < 'A' || first > 'Z' { // an address begins the next mapping
			total += current.memory()
			current = header(line)
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "Pss":
			current.pss = number(value)
		case "Anonymous":
			current.anonymous = number(value)
		case "SwapPss":
			current.swap = number(value)
		}
	}
}

// hasEnded reports whether an error means that a process has ended since it was
// found.
func hasEnded(err error) bool {
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

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
	// stopTime bounds the wait for processes to stop. On a busy machine one may be in
	// the middle of a fork for long, and be counted twice; it takes no new memory
	// there.
	stopTime = time.Second
	// answerTime bounds how long a process may delay the read of its mappings, in
	// addition to the time that the read itself may cost.
	answerTime = stopTime
	// growing is the growth that shows that processes take memory, in bytes. One that
	// is about to stop takes less.
	growing = 8 << 20
)

// budget is an amount of this thread's processor time. Time in which the thread waits
// for a processor does not count.
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

// exact returns the memory of the processes that the last scan found, in which a page
// that n processes share counts 1/n for each. A process counts as in that scan if its
// mappings cannot be read, or not within the budget. It stops when the total is more than
// enough. ok is false if it would take too long, because the sandbox takes memory or
// changes its mappings meanwhile.
func (s *scanner) exact(size time.Duration, enough int64) (total int64, cost time.Duration, ok bool) {
	found := slices.Clone(s.found) // ask scans again
	tasks, first := map[int]int{}, map[int]int64{}
	for _, p := range found {
		tasks[p.pid] = p.task
		first[p.pid] = p.memory
	}
	for _, p := range found {
		if parent, ok := tasks[p.parent]; ok && sameMemory(p.task, parent) {
			continue // a child of vfork, before its exec
		}
		memory := p.memory
		if cost < size {
			a, answered := s.measure(p, size-cost, first)
			if !answered {
				return 0, cost, false
			}
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
	return total, cost, true
}

// answer is the memory of a process, if ok, and the cost of finding out.
type answer struct {
	memory int64
	cost   time.Duration
	ok     bool
}

// measure has another goroutine read the mappings of a process. The kernel admits no reader
// while the process changes its mappings, and code can keep it in that state for as long
// as it likes. If the sandbox grows meanwhile, measure does not wait for the answer. first is
// the memory of the processes at the beginning.
func (s *scanner) measure(p process, size time.Duration, first map[int]int64) (a answer, answered bool) {
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
	for end := time.Now().Add(size + answerTime); time.Now().Before(end); {
		select {
		case a := <-answers:
			return a, true
		case <-time.After(nearPause):
		}
		if _, err := s.scan(0); err == nil && s.growth(first) > growing {
			break
		}
	}
	return answer{}, false
}

// growth returns by how much the processes have grown since the memory of each was
// noted in first, where it notes new ones. A fork makes new processes but takes no memory.
func (s *scanner) growth(first map[int]int64) (total int64) {
	for _, p := range s.found {
		if had, seen := first[p.pid]; !seen {
			first[p.pid] = p.memory
		} else {
			total += max(p.memory-had, 0)
		}
	}
	return total
}

// stop stops every other process of the namespace until resume is called, if this process
// is the first of the namespace. Elsewhere they may not be the sandbox's.
func (s *scanner) stop() (resume func()) {
	if s.self != 1 || unix.Kill(-1, unix.SIGSTOP) != nil {
		return func() {}
	}
	for end := time.Now().Add(stopTime); !s.stopped() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return func() { _ = unix.Kill(-1, unix.SIGCONT) }
}

// stopped reports whether every process of the last scan has stopped or ended, or
// waiting is useless because one takes memory nevertheless, in the middle of a system
// call that fills a mapping.
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

// mapping is a mapping of a process as /proc/PID/smaps shows it. Sizes are in KiB.
type mapping struct {
	path                 string
	inode                bool // of a file
	pss, anonymous, swap int64
}

// memory returns the bytes of a mapping that count for the process. Pages of a file in a
// file system do not: they count there or belong to the host.
func (m mapping) memory() int64 {
	size := m.pss
	if m.inode && !isUnnamed(m.path) {
		size = min(m.pss, m.anonymous)
	}
	return (size + m.swap) << 10
}

// isUnnamed reports whether a mapped file is in no file system that is counted. The
// kernel gives these names to such files; another file with such a name counts twice.
func isUnnamed(path string) bool {
	for _, prefix := range []string{"/dev/zero (deleted)", "[anon_shmem:", "/memfd:", "/anon_hugepage (deleted)"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// readMappings returns the memory in the mappings of a process or a thread, in bytes. It
// fails if the process is not dumpable, or the read would cost more than the budget.
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
		if first := line[0]; first < 'A' || first > 'Z' { // an address: the next mapping
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

// hasEnded reports whether an error means that a process has ended since the scan.
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

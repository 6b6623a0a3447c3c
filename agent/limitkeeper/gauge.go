package limitkeeper

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
)

const (
	// maxStatus holds /proc/PID/status, of 1.5 KB; more where a kernel lists
	// many processors.
	maxStatus = 16 << 10
	// maxSegments bounds what is read of /proc/sysvipc/shm: the kernel has
	// at most 4,096 segments of 160 bytes.
	maxSegments = 1 << 20
	// namesAtOnce bounds the names of processes that are read at once.
	namesAtOnce = 256
)

// process is what one look found.
type process struct {
	pid, parent int
	task        int   // the thread by which the kernel shows the memory
	clock       int64 // processor time that it had used before, in ns
	memory      int64 // bytes, with what it shares with others
	tables      int64 // bytes of memory that map the memory
}

// gauge reads a sandbox's use of memory and processes.
type gauge struct {
	proc    *os.File
	folders []string
	self    int
	buf     []byte
	found   []process
	ignored map[int]time.Time
}

func newGauge(folders []string) (*gauge, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	g := &gauge{proc: proc, self: os.Getpid(), buf: make([]byte, maxStatus), ignored: map[int]time.Time{}}
	seen := map[uint64]bool{}
	for _, folder := range folders {
		var stat unix.Stat_t
		if err := unix.Stat(folder, &stat); err != nil {
			proc.Close()
			return nil, &os.PathError{Op: "stat", Path: folder, Err: err}
		}
		if _, inMemory, err := filesIn(folder); err != nil || !inMemory || seen[stat.Dev] {
			continue
		}
		seen[stat.Dev] = true
		g.folders = append(g.folders, folder)
	}
	return g, nil
}

func (g *gauge) close() { g.proc.Close() }

// pids returns the processes of the last look.
func (g *gauge) pids() []int {
	var pids []int
	for _, p := range g.found {
		pids = append(pids, p.pid)
	}
	return pids
}

// ignore leaves processes that were killed out of what is counted.
func (g *gauge) ignore(pids []int, until time.Time) {
	clear(g.ignored)
	for _, pid := range pids {
		if pid != g.self {
			g.ignored[pid] = until
		}
	}
}

// bound returns what is used at most: shared memory counts for each process
// that shares it. It stops counting when there are too many tasks.
func (g *gauge) bound(maxTasks int) (Usage, error) {
	usage := Usage{}
	var err error
	if usage.Files, err = g.files(); err != nil {
		return usage, err
	}
	g.found = g.found[:0]
	if _, err := g.proc.Seek(0, io.SeekStart); err != nil {
		return usage, err
	}
	now := time.Now()
	for {
		names, err := g.proc.Readdirnames(namesAtOnce)
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			if until, ok := g.ignored[pid]; ok {
				if now.Before(until) {
					continue
				}
				delete(g.ignored, pid)
			}
			p, tasks, ok := g.process(pid)
			if !ok {
				continue
			}
			g.found = append(g.found, p)
			usage.Processes += p.memory + p.tables
			if pid != g.self {
				usage.Tasks += tasks
			}
			if maxTasks > 0 && usage.Tasks > maxTasks {
				return usage, nil
			}
		}
		if errors.Is(err, io.EOF) {
			return usage, nil
		}
		if err != nil {
			return usage, err
		}
	}
}

// still says whether no process of the last look has run since: nothing was
// taken then, and none that it did not find was started by one of them. This
// process is not asked; what it starts, a later look finds. It costs a system
// call for each process where a look costs ten.
func (g *gauge) still() bool {
	for _, p := range g.found {
		if p.pid == g.self {
			continue
		}
		if clock, ok := spentByProcess(p.pid); !ok || clock != p.clock {
			return false
		}
	}
	return true
}

// spentByProcess is the processor time of a process's threads together, in
// ns. The clock's number is made as clock_getcpuclockid(3) makes it.
func spentByProcess(pid int) (ns int64, ok bool) {
	const scheduler = 2 // CPUCLOCK_SCHED
	var now unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduler), &now); err != nil {
		return 0, false
	}
	return now.Nano(), true
}

// files returns the bytes of files in memory.
func (g *gauge) files() (int64, error) {
	total, err := segments()
	if err != nil {
		return 0, err
	}
	for _, folder := range g.folders {
		used, _, err := filesIn(folder)
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}

// fileCost is what the kernel keeps for a file in memory beside its contents,
// in bytes: about 700 for the file, and 200 for its name.
const fileCost = 1 << 10

// filesIn returns the bytes used in a folder's file system, those for the
// files themselves among them, and whether that is one in memory. An overlay
// answers for its upper layer; the one that a sandbox can write to has that
// in memory.
func filesIn(folder string) (used int64, inMemory bool, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(folder, &fs); err != nil {
		return 0, false, &os.PathError{Op: "statfs", Path: folder, Err: err}
	}
	inMemory = fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.OVERLAYFS_SUPER_MAGIC
	return int64(fs.Blocks-fs.Bfree)*int64(fs.Bsize) + int64(fs.Files-fs.Ffree)*fileCost, inMemory, nil
}

// segments returns the bytes of System V's shared memory, attached or not.
func segments() (int64, error) {
	text, err := bounded.ReadFile("/proc/sysvipc/shm", maxSegments)
	if errors.Is(err, os.ErrNotExist) { // a kernel without it
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	header, rows, _ := bytes.Cut(text, []byte("\n"))
	var columns []int
	for i, name := range bytes.Fields(header) {
		if string(name) == "rss" || string(name) == "swap" {
			columns = append(columns, i)
		}
	}
	if len(columns) != 2 {
		return 0, fmt.Errorf("/proc/sysvipc/shm has the columns %q, want rss and swap among them", header)
	}
	var total int64
	for row := range bytes.Lines(rows) {
		fields := bytes.Fields(row)
		for _, column := range columns {
			if column < len(fields) {
				n, _ := strconv.ParseInt(string(fields[column]), 10, 64)
				total += n
			}
		}
	}
	return total, nil
}

// process reads what a process uses; ok is false where it has ended.
func (g *gauge) process(pid int) (p process, tasks int, ok bool) {
	clock, _ := spentByProcess(pid)
	text, task := g.status(pid)
	if len(text) == 0 {
		return p, 0, false
	}
	// A process that has given its memory back has none of the Rss lines,
	// and still counts as a task.
	return process{
		pid:    pid,
		task:   task,
		clock:  clock,
		parent: int(field(text, "PPid")),
		memory: resident(text),
		tables: field(text, "VmPTE") << 10,
	}, max(int(field(text, "Threads")), 1), true
}

// statusTries bounds the search for a thread that has the memory of a process.
// Threads can end as fast as they are read, each after it has started the next.
const statusTries = 16

// status returns /proc/PID/status of a process, or nothing where it has ended,
// and the number of the thread whose status it is. That is the first thread's,
// whose number is the process's. Where the first thread has ended before the
// others, it is a zombie without memory until they have ended too, and the
// status is that of one which still has the memory. A process that is about to
// end has no such thread. The text is valid until the next read.
func (g *gauge) status(pid int) (text []byte, task int) {
	folder := strconv.Itoa(pid)
	for range statusTries {
		text = g.read(folder + "/status")
		if state(text) != 'Z' || field(text, "Threads") <= 1 {
			break
		}
		for _, name := range names(folder + "/task") {
			if other := g.read(name + "/status"); bytes.Contains(other, []byte("\nRssAnon:")) {
				task, _ = strconv.Atoi(name)
				return other, task
			}
		}
		text = g.read(folder + "/status")
	}
	return text, pid
}

// names returns the first entries of a folder of /proc; none where it is gone.
func names(folder string) []string {
	dir, err := os.Open("/proc/" + folder)
	if err != nil {
		return nil
	}
	defer dir.Close()
	entries, _ := dir.Readdirnames(namesAtOnce)
	return entries
}

// state is the letter of the state in /proc/PID/status.
func state(status []byte) byte {
	_, rest, _ := bytes.Cut(status, []byte("\nState:\t"))
	if len(rest) == 0 {
		return 0
	}
	return rest[0]
}

// resident is a process's memory, in bytes, of its /proc/PID/status.
func resident(status []byte) int64 {
	return (field(status, "RssAnon") + field(status, "RssShmem") + field(status, "VmSwap")) << 10
}

// read returns a small file of /proc, or nothing; valid until the next call.
func (g *gauge) read(name string) []byte {
	fd, err := unix.Openat(int(g.proc.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, g.buf)
	if err != nil {
		return nil
	}
	return g.buf[:n]
}

// field returns a number of /proc/PID/status. A process chooses its name,
// which is the first line, and cannot end that line.
func field(text []byte, name string) int64 {
	_, rest, found := bytes.Cut(text, []byte("\n"+name+":"))
	if !found {
		return 0
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	number, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
	n, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

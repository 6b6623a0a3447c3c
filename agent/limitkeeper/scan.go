package limitkeeper

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
)

const (
	// maxStatus bounds /proc/PID/status, in bytes. It has 1.5 KB, and more where
	// a kernel lists many processors.
	maxStatus = 16 << 10
	// maxSegments bounds /proc/sysvipc/shm, in bytes: the kernel has at most
	// 4,096 segments, of 160 bytes each.
	maxSegments = 1 << 20
	// maxNames bounds the names of processes or threads that are read at once.
	maxNames = 256
	// statusTries bounds the search for a thread that has the memory of a
	// process. Threads can end as fast as they are read, each after it has
	// started the next one.
	statusTries = 16
)

// process is what a scan found out about a process.
type process struct {
	pid, parent int
	task        int   // the thread by which the kernel shows the memory
	time        int64 // processor time that it had used before the scan, in ns
	memory      int64 // bytes, with those that it shares with others
	kernel      int64 // bytes that the kernel keeps for it: page tables and open files
}

// scanner finds out what a sandbox uses. It is not safe for concurrent use.
type scanner struct {
	proc    *os.File
	folders []string // one for each file system in memory
	sizes   []int64  // bytes in each of them, by the last scan
	self    int
	buf     []byte
	open    int64     // bytes that an open file counts as where a process has many
	found   []process // by the last scan
	before  []process // by the scan before it
	ignored map[int]time.Time
}

// newScanner returns a scanner of the file systems in which the folders lie. A
// folder whose file system is not in memory is left out.
func newScanner(folders []string) (*scanner, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	s := &scanner{proc: proc, self: os.Getpid(), buf: make([]byte, maxStatus), open: openFileCost(), ignored: map[int]time.Time{}}
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
		s.folders = append(s.folders, folder)
	}
	s.sizes = make([]int64, len(s.folders))
	return s, nil
}

func (s *scanner) close() { s.proc.Close() }

// ignore leaves the processes that the last scan found, and that were killed, out
// of further scans up to a time.
func (s *scanner) ignore(until time.Time) {
	clear(s.ignored)
	for _, p := range s.found {
		if p.pid != s.self {
			s.ignored[p.pid] = until
		}
	}
}

// scan returns what is used at most: shared memory counts for each process that
// shares it. It stops when there are more tasks than maxTasks, unless that is 0.
func (s *scanner) scan(maxTasks int) (Usage, error) {
	usage := Usage{}
	var err error
	if usage.Files, err = s.files(); err != nil {
		return usage, err
	}
	s.found = s.found[:0]
	if _, err := s.proc.Seek(0, io.SeekStart); err != nil {
		return usage, err
	}
	now := time.Now()
	for {
		names, err := s.proc.Readdirnames(maxNames)
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			if until, ok := s.ignored[pid]; ok {
				if now.Before(until) {
					continue
				}
				delete(s.ignored, pid)
			}
			p, tasks, ok := s.process(pid)
			if !ok {
				continue
			}
			s.found = append(s.found, p)
			usage.Processes += p.memory + p.kernel
			if pid != s.self {
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

// files returns the bytes of files in memory.
func (s *scanner) files() (int64, error) {
	total, err := segments()
	if err != nil {
		return 0, err
	}
	for i, folder := range s.folders {
		used, _, err := filesIn(folder)
		if err != nil {
			return 0, err
		}
		s.sizes[i] = used
		total += used
	}
	return total, nil
}

// fileCost is what the kernel keeps for a file in memory beside its contents,
// in bytes: about 700 for the inode, and 200 for the name.
const fileCost = 1 << 10

// filesIn returns the bytes that a folder's file system uses, those for inodes
// and names among them, and whether it is in memory. An overlay answers for its
// upper layer, which is in memory where the sandbox can write to it.
func filesIn(folder string) (used int64, inMemory bool, err error) {
	path, err := unix.BytePtrFromString(folder)
	if err != nil {
		return 0, false, err
	}
	// Not unix.Statfs: see processTime.
	var fs unix.Statfs_t
	if _, _, errno := unix.RawSyscall(unix.SYS_STATFS, uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&fs)), 0); errno != 0 {
		return 0, false, &os.PathError{Op: "statfs", Path: folder, Err: errno}
	}
	inMemory = fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.OVERLAYFS_SUPER_MAGIC
	return int64(fs.Blocks-fs.Bfree)*int64(fs.Bsize) + int64(fs.Files-fs.Ffree)*fileCost, inMemory, nil
}

// segments returns the bytes of System V's shared memory, attached or not.
func segments() (int64, error) {
	text, err := bounded.ReadFile("/proc/sysvipc/shm", maxSegments)
	if errors.Is(err, os.ErrNotExist) { // a kernel without System V's shared memory
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
				total += number(fields[column])
			}
		}
	}
	return total, nil
}

// process finds out what a process uses. ok is false where it has ended.
func (s *scanner) process(pid int) (p process, tasks int, ok bool) {
	used, _ := processTime(pid)
	text, task := s.status(pid)
	if len(text) == 0 {
		return p, 0, false
	}
	// A process that has given its memory back counts as a task until it has
	// been waited for.
	return process{
		pid:    pid,
		parent: int(field(text, "PPid")),
		task:   task,
		time:   used,
		memory: resident(text),
		kernel: field(text, "VmPTE")<<10 + s.costOfFiles(openFiles(task, text)),
	}, max(int(field(text, "Threads")), 1), true
}

const (
	// minFileCost is the kernel's memory for an open file, in bytes. A pipe is
	// two open files, and contains 8 KB where the pipes of the user have as many
	// pages as are allowed (fs.pipe-user-pages-soft, 64 MB); a socket takes 2 KB
	// beside its buffers.
	minFileCost = 4 << 10
	maxFileCost = 64 << 10
	// usualFiles are as many as most processes have open. What a process inherits
	// counts again, although the machine has it once.
	usualFiles = 64
	// fewFiles is the size of the descriptor table that every process may have.
	// Kernels before Linux 6.2 show the size of the table and not its use.
	fewFiles = 256
)

// openFileCost returns what an open file of a process with many counts as, in bytes. The
// machine bounds all open files together (fs.file-max): without systemd, it has one for
// each 10 KB of its memory. Each counts as its part of the memory, so that a sandbox that
// may have a part of the memory may have the same part of the files.
func openFileCost() int64 {
	text, err := bounded.ReadFile("/proc/sys/fs/file-max", maxStatus)
	var machine unix.Sysinfo_t
	if err != nil || unix.Sysinfo(&machine) != nil {
		return minFileCost
	}
	most := max(number(bytes.TrimSpace(text)), 1)
	return min(max(int64(machine.Totalram)*int64(machine.Unit)/most, minFileCost), maxFileCost)
}

// costOfFiles returns what the open files of a process count as, in bytes.
func (s *scanner) costOfFiles(count int64) int64 {
	return count*minFileCost + max(count-usualFiles, 0)*(s.open-minFileCost)
}

// openFiles returns how many files a process or a thread has open, as far as the
// kernel shows it: from Linux 6.2 on, as the size of the folder of descriptors. status
// is its /proc/PID/status.
func openFiles(task int, status []byte) int64 {
	var stat unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(task)+"/fd", &stat); err != nil || stat.Size > 0 {
		return stat.Size
	}
	if size := field(status, "FDSize"); size > fewFiles {
		return size
	}
	return 0
}

// status returns /proc/PID/status of a process, or nothing where it has ended,
// and the number of the thread whose status it is. That is the first thread's,
// whose number is the process's. Where the first thread has ended before the
// others, it is a zombie without memory until they have ended too, and the
// status is that of a thread which still has the memory. In a process that is
// about to end there is none. The text is valid until the next read.
func (s *scanner) status(pid int) (text []byte, task int) {
	folder := strconv.Itoa(pid)
	for range statusTries {
		text = s.read(folder + "/status")
		if state(text) != 'Z' || field(text, "Threads") <= 1 {
			break
		}
		for _, name := range threads(folder) {
			if other := s.read(name + "/status"); hasMemory(other) {
				task, _ = strconv.Atoi(name)
				return other, task
			}
		}
		text = s.read(folder + "/status")
	}
	return text, pid
}

// threads returns the first threads of a process; none where it has ended.
func threads(pid string) []string {
	dir, err := os.Open("/proc/" + pid + "/task")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxNames)
	return names
}

// read returns a small file of /proc, or nothing. It is valid until the next
// read.
func (s *scanner) read(name string) []byte {
	fd, err := unix.Openat(int(s.proc.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, s.buf)
	if err != nil {
		return nil
	}
	return s.buf[:n]
}

// hasMemory reports whether /proc/PID/status is of a process or thread that has not given
// its memory back.
func hasMemory(status []byte) bool { return bytes.Contains(status, []byte("\nRssAnon:")) }

// resident is the memory that /proc/PID/status shows, in bytes.
func resident(status []byte) int64 {
	return (field(status, "RssAnon") + field(status, "RssShmem") + field(status, "VmSwap")) << 10
}

// state is the letter of a state in /proc/PID/status, or 0.
func state(status []byte) byte {
	if text := line(status, "State"); len(text) > 0 {
		return text[0]
	}
	return 0
}

// field returns a number of /proc/PID/status, 0 where there is none.
func field(status []byte, name string) int64 { return number(line(status, name)) }

// line returns what a line of /proc/PID/status says. A process chooses its
// name, which is the first line, and cannot end that line.
func line(status []byte, name string) []byte {
	_, rest, _ := bytes.Cut(status, []byte("\n"+name+":"))
	text, _, _ := bytes.Cut(rest, []byte("\n"))
	return bytes.TrimSpace(text)
}

// number is the number at the beginning of a text, 0 where there is none.
func number(text []byte) int64 {
	digits, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte(" "))
	n, _ := strconv.ParseInt(string(digits), 10, 64)
	return n
}

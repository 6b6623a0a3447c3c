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

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

const (
	// maxStatus bounds /proc/PID/status, in bytes. It has 1.5 KB, and more if the
	// kernel lists many processors.
	maxStatus = 16 << 10
	// maxSegments bounds /proc/sysvipc/shm, in bytes: the kernel has at most
	// 4,096 segments, of 160 bytes each.
	maxSegments = 1 << 20
	// maxNames is how many names of a folder are read at once.
	maxNames = 256
	// statusTries bounds the search for a thread with the memory of a process. Threads
	// can end as fast as they are read, each after it has started the next one.
	statusTries = 16
)

type process struct {
	pid, parent int
	task        int   // the thread that has the memory in /proc
	time        int64 // its processor time before the scan, in ns
	memory      int64 // bytes, including memory that it shares
	kernel      int64 // bytes of page tables and open files
}

// scanner measures a sandbox. It is not safe for concurrent use.
type scanner struct {
	proc    *os.File
	shared  *file    // /proc/sysvipc/shm
	folders []string // one for each file system in memory
	sizes   []int64  // bytes in each of them in the last scan
	self    int
	buf     []byte
	open    int64     // bytes for each open file of a process with many
	kernel  int64     // bytes of kernel memory that the last scan counted
	found   []process // in the last scan
	before  []process // in the scan before it
	ignored map[int]time.Time
}

// newScanner returns a scanner of all processes and of the file systems that contain the
// folders, unless those are not in memory.
func newScanner(folders []string) (*scanner, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	s := &scanner{
		proc: proc, shared: openFile("/proc/sysvipc/shm", maxSegments), self: os.Getpid(),
		buf: make([]byte, maxStatus), open: openFileCost(), ignored: map[int]time.Time{},
	}
	seen := map[uint64]bool{}
	for _, folder := range folders {
		var stat unix.Stat_t
		if err := unix.Stat(folder, &stat); err != nil {
			s.close()
			return nil, &os.PathError{Op: "stat", Path: folder, Err: err}
		}
		if _, _, inMemory, err := filesIn(folder); err != nil || !inMemory || seen[stat.Dev] {
			continue
		}
		seen[stat.Dev] = true
		s.folders = append(s.folders, folder)
	}
	s.sizes = make([]int64, len(s.folders))
	return s, nil
}

func (s *scanner) close() {
	s.proc.Close()
	s.shared.Close()
}

// ignore leaves the processes of the last scan, which were killed, out of scans until a
// given time.
func (s *scanner) ignore(until time.Time) {
	clear(s.ignored)
	for _, p := range s.found {
		if p.pid != s.self {
			s.ignored[p.pid] = until
		}
	}
}

// scan returns an upper bound of the usage: shared memory counts for each process that
// shares it. It stops when there are more than maxTasks tasks, unless that is 0.
func (s *scanner) scan(maxTasks int) (Usage, error) {
	usage := Usage{}
	s.kernel = 0
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
			s.kernel += p.kernel
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
	total, err := s.segments()
	if err != nil {
		return 0, err
	}
	for i, folder := range s.folders {
		used, inodes, _, err := filesIn(folder)
		if err != nil {
			return 0, err
		}
		s.sizes[i] = used
		s.kernel += inodes
		total += used
	}
	return total, nil
}

// fileCost is the kernel memory of a file in memory, in bytes: about 700 for the inode,
// and 200 for the name.
const fileCost = 1 << 10

// filesIn returns the bytes that a folder's file system uses, how many of them are for
// inodes and names, and whether it is in memory. An overlay reports its upper layer, which
// is in memory if the sandbox can write to it.
func filesIn(folder string) (used, inodes int64, inMemory bool, err error) {
	path, err := unix.BytePtrFromString(folder)
	if err != nil {
		return 0, 0, false, err
	}
	// Not unix.Statfs: see processTime.
	var fs unix.Statfs_t
	if _, _, errno := unix.RawSyscall(unix.SYS_STATFS, uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&fs)), 0); errno != 0 {
		return 0, 0, false, &os.PathError{Op: "statfs", Path: folder, Err: errno}
	}
	inMemory = fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.OVERLAYFS_SUPER_MAGIC
	inodes = int64(fs.Files-fs.Ffree) * fileCost
	return int64(fs.Blocks-fs.Bfree)*int64(fs.Bsize) + inodes, inodes, inMemory, nil
}

// segments returns the bytes of System V's shared memory, attached or not.
func (s *scanner) segments() (int64, error) {
	text, err := s.shared.read()
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

// process measures a process. ok is false if it has ended.
func (s *scanner) process(pid int) (p process, tasks int, ok bool) {
	used, _ := processTime(pid)
	text, task := s.status(pid)
	if len(text) == 0 {
		return p, 0, false
	}
	// A zombie counts as a task until it has been waited for.
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
	// minFileCost is the kernel's memory for an open file, in bytes. A pipe is two
	// open files, and contains 8 KB once the pipes of the user have reached
	// fs.pipe-user-pages-soft (64 MB). A socket takes 2 KB without its buffers.
	minFileCost = 4 << 10
	maxFileCost = 64 << 10
	// usualFiles is the number of open files of most processes. Inherited files count
	// again, although the machine has them once.
	usualFiles = 64
	// fewFiles is a usual size of a process's descriptor table. Kernels before Linux
	// 6.2 show that size and not the number of open files.
	fewFiles = 256
)

// openFileCost returns the bytes for each open file of a process with many. The machine
// bounds all open files together (fs.file-max): without systemd to one for each 10 KB of
// memory. Counted like this, a sandbox that may use half of the memory may also open half
// of the files.
func openFileCost() int64 {
	text, err := bounded.ReadFile("/proc/sys/fs/file-max", maxStatus)
	var machine unix.Sysinfo_t
	if err != nil || unix.Sysinfo(&machine) != nil {
		return minFileCost
	}
	most := max(number(bytes.TrimSpace(text)), 1)
	return min(max(int64(machine.Totalram)*int64(machine.Unit)/most, minFileCost), maxFileCost)
}

// costOfFiles returns the bytes for the open files of a process.
func (s *scanner) costOfFiles(count int64) int64 {
	return count*minFileCost + max(count-usualFiles, 0)*(s.open-minFileCost)
}

// openFiles returns how many files a process or a thread has open. Since Linux 6.2 that is
// the size of its folder of descriptors; before, 0 unless the table in status, its
// /proc/PID/status, is large.
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

// status returns /proc/PID/status of a process, or "" if it has ended, and the number
// of the thread that it describes. Usually that is the first thread, which has the number
// of the process. If the first thread ends before the others, it is a zombie without
// memory until they end too, and status describes a thread that still has the memory, if
// there is one. The text is valid until the next read.
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

// threads returns the first threads of a process that has not ended.
func threads(pid string) []string {
	dir, err := os.Open("/proc/" + pid + "/task")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxNames)
	return names
}

// read returns a small file of /proc, or "" if it cannot be read. The text is valid
// until the next read.
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

// resident is the memory in /proc/PID/status, in bytes.
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

// field returns a number of /proc/PID/status, or 0 if it is missing.
func field(status []byte, name string) int64 { return number(line(status, name)) }

// line returns the value of a line of /proc/PID/status. A process chooses its own name,
// which is in the first line, but cannot put a newline there.
func line(status []byte, name string) []byte {
	_, rest, _ := bytes.Cut(status, []byte("\n"+name+":"))
	text, _, _ := bytes.Cut(rest, []byte("\n"))
	return bytes.TrimSpace(text)
}

// number is the number at the beginning of a text, or 0.
func number(text []byte) int64 {
	digits, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte(" "))
	n, _ := strconv.ParseInt(string(digits), 10, 64)
	return n
}

package limitkeeper

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

// The kernel keeps memory for code beside the pages of its processes. This file
// counts what can be counted at a bounded cost: file locks, terminals, mappings,
// watches of epoll instances, and bytes that wait in sockets. What takes no longer
// than a process's memory is counted with it: page tables and open files.

const (
	// Scans of what takes long to read are a second apart, and begin when code has
	// run for a second, so that short calls pay nothing. Many sockets can fill
	// with a gigabyte a second, and are scanned more often.
	slowScan = time.Second
	fastScan = 50 * time.Millisecond
	// scanRest is the time between two scans, in multiples of the cost of one.
	scanRest = 20
	// mappingsTime bounds the part of a scan that counts mappings, in processor
	// time. The processes that are left are counted by the next scan.
	mappingsTime = 50 * time.Millisecond

	// fewSockets are too few for a scan: each contains at most some 8 MB.
	fewSockets = 16
	// maxSockets bounds what is read of one table of sockets, in bytes: 14,000
	// lines.
	maxSockets = 2 << 20
	// pendingCost is what a connection to a Unix socket that nobody has accepted
	// may contain, in bytes: a sender's buffer of the default size
	// (net.core.wmem_default). The sender may have closed its end, so that no
	// descriptor stands for the buffer.
	pendingCost = 212_992

	// A process with more than manyMappings mappings counts as one with as many
	// as a process may have, because to count them costs more than to make them.
	// Interpreters have some 500.
	manyMappings = 4096
	// enoughRounds is how many scans of processes that do not run are as good as any more.
	enoughRounds = 3
	// allMappings is the kernel's default of vm.max_map_count, and mappingCost
	// the size of its vm_area_struct, in bytes.
	allMappings = 65_530
	mappingCost = 200
	// mappingTime is the processor time that a process uses between two counts of
	// its mappings. To make one mapping takes a microsecond.
	mappingTime = 10 * time.Millisecond
)

// kernelUse is what the kernel keeps for the sandbox.
type kernelUse struct {
	Bytes     int64 // for sockets and mappings
	Locks     int   // at most frame.MaxFileLocks + 1
	Watches   int   // of epoll instances
	Terminals int
}

// kernelScanner finds out what the kernel keeps. A goroutine of its own reads what
// takes long, or what waits for locks of the kernel that code can hold.
type kernelScanner struct {
	terminals *os.File // /dev/pts, or nil
	buf       []byte

	scans    chan kernelScan    // to the goroutine, which exists from the first scan on
	results  chan kernelFound   // from it
	running  bool               // a scan has no result yet
	stale    bool               // the processes of that scan have been killed meanwhile
	ended    time.Time          // when the last scan ended, or code first ran; zero before
	earliest time.Time          // when the next scan may begin
	last     kernelFound        // the last result that counts
	scanned  []process          // of the last scan that began
	rounds   int                // scans in a row of these processes, none of which had run
	many     bool               // there were many sockets, which fill from outside too
	mappings map[int]mappingsOf // by process
}

type kernelScan struct {
	sockets   bool
	self      int       // this process, whose epoll instance does not count
	processes []process // whose epoll instances to count
	mappings  []process // whose mappings to count
}

// kernelFound is the result of a scan.
type kernelFound struct {
	locks    int
	watches  int
	sockets  int64 // bytes
	mappings map[int]mappingsOf
	left     bool          // there was no time to read all
	cost     time.Duration // processor time
}

// mappingsOf says how many mappings a process had.
type mappingsOf struct {
	time int64 // the processor time that it had used then, in ns
	many bool  // more than manyMappings
}

func newKernelScanner() *kernelScanner {
	// A machine without terminals has no such folder.
	terminals, _ := os.Open("/dev/pts")
	return &kernelScanner{terminals: terminals, buf: make([]byte, 4096), mappings: map[int]mappingsOf{}}
}

// close ends the goroutine, after the scan that it is carrying out.
func (k *kernelScanner) close() {
	if k.terminals != nil {
		k.terminals.Close()
	}
	if k.scans != nil {
		close(k.scans)
	}
}

// use returns what the last scan has found, and begins the next one if it is due.
// found are the sandbox's processes; self is this one.
func (k *kernelScanner) use(found []process, self int, now time.Time) kernelUse {
	k.collect(0)
	due := k.dueProcesses(found, self)
	k.many = countSockets() > fewSockets
	period := slowScan
	if k.many {
		period = fastScan
	}
	if !k.running && !k.isComplete(found, self) && !k.ended.IsZero() && now.Sub(k.ended) >= period && now.After(k.earliest) {
		k.begin(kernelScan{sockets: k.many, self: self, processes: slices.Clone(found), mappings: due})
		// Most scans end within this time.
		k.collect(time.Millisecond)
	}
	use := kernelUse{Locks: k.last.locks, Watches: k.last.watches, Terminals: k.countTerminals()}
	if k.many {
		use.Bytes += k.last.sockets
	}
	for _, m := range k.mappings {
		if m.many {
			use.Bytes += allMappings * mappingCost
		}
	}
	return use
}

// isComplete reports whether enough scans in a row read all that there is of the processes
// found, which have not run since. One is not enough: about one in ten did not see 20,000
// locks that there were.
func (k *kernelScanner) isComplete(found []process, self int) bool {
	return !k.running && !k.many && !k.last.left && k.rounds >= enoughRounds && sameTimes(k.scanned, found, self)
}

// begun says that code has begun to run. In a sandbox that waits for its first
// call there is nothing to scan.
func (k *kernelScanner) begun() {
	if k.ended.IsZero() {
		k.ended = time.Now()
	}
}

// dueProcesses returns the processes that may have made mappings since these were
// counted, and those whose mappings never were. It forgets processes that have
// ended.
func (k *kernelScanner) dueProcesses(found []process, self int) (due []process) {
	alive := make(map[int]mappingsOf, len(k.mappings))
	for _, p := range found {
		if p.pid == self {
			continue
		}
		m, known := k.mappings[p.pid]
		known = known && m.time <= p.time // otherwise another process has the number
		if !known && k.mappings[p.parent].many {
			// A fork has all mappings of its parent. They are due to be counted as
			// well, because the process may have started another program since.
			m, known = mappingsOf{time: -int64(mappingTime), many: true}, true
		}
		if known {
			alive[p.pid] = m
		}
		if !known || p.time-m.time >= int64(mappingTime) {
			due = append(due, p)
		}
	}
	k.mappings = alive
	return due
}

// refresh counts everything that takes memory again, because what was counted may
// no longer exist. The processes are stopped meanwhile. It waits for at most 2 s.
func (k *kernelScanner) refresh(found []process, self int) {
	k.collect(time.Second)
	if k.running {
		return
	}
	var again []process
	for _, p := range found {
		if k.mappings[p.pid].many {
			again = append(again, p)
		}
	}
	k.begin(kernelScan{sockets: true, self: self, processes: slices.Clone(found), mappings: again})
	k.collect(time.Second)
}

// forget drops what was counted, because the processes have been killed.
func (k *kernelScanner) forget() {
	k.last, k.scanned, k.rounds = kernelFound{}, nil, 0
	k.stale = k.running
	clear(k.mappings)
}

// begin has the goroutine carry out a scan.
func (k *kernelScanner) begin(s kernelScan) {
	if k.scans == nil {
		k.scans, k.results = make(chan kernelScan, 1), make(chan kernelFound, 1)
		go func(scans <-chan kernelScan, results chan<- kernelFound) {
			runtime.LockOSThread() // whose processor time is the cost of a scan
			var counter epollCounter
			for s := range scans {
				results <- s.read(&counter)
			}
		}(k.scans, k.results)
	}
	k.scans <- s
	if sameTimes(k.scanned, s.processes, s.self) {
		k.rounds++
	} else {
		k.rounds = 1
	}
	k.running, k.scanned = true, s.processes
}

// collect takes the result of a scan, if one arrives within the time.
func (k *kernelScanner) collect(wait time.Duration) {
	if !k.running {
		return
	}
	var result kernelFound
	select {
	case result = <-k.results:
	default:
		if wait == 0 {
			return
		}
		select {
		case result = <-k.results:
		case <-time.After(wait):
			return
		}
	}
	k.running = false
	k.ended = time.Now()
	k.earliest = k.ended.Add(scanRest * result.cost)
	if !k.stale {
		k.last = result
		maps.Copy(k.mappings, result.mappings)
	}
	k.stale = false
}

// countTerminals returns the number of entries of /dev/pts but ptmx.
func (k *kernelScanner) countTerminals() int {
	if k.terminals == nil {
		return 0
	}
	if _, err := k.terminals.Seek(0, io.SeekStart); err != nil {
		return 0
	}
	total := 0
	for {
		n, err := unix.ReadDirent(int(k.terminals.Fd()), k.buf)
		if err != nil || n <= 0 {
			return max(total-1, 0)
		}
		_, entries, _ := unix.ParseDirent(k.buf[:n], -1, nil)
		total += entries
	}
}

// countSockets returns the number of sockets of the sandbox, with those for which
// there is no descriptor.
func countSockets() int {
	text, _ := bounded.ReadFile("/proc/net/sockstat", maxStatus)
	_, rest, _ := bytes.Cut(text, []byte("sockets: used "))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return int(number(line))
}

func (s kernelScan) read(counter *epollCounter) kernelFound {
	begin := newBudget(mappingsTime)
	result := kernelFound{locks: fileLocks(), mappings: map[int]mappingsOf{}}
	if s.sockets {
		result.sockets = socketMemory()
	}
	result.watches, result.left = counter.count(s.processes, s.self)
	rest := newBudget(mappingsTime)
	for _, p := range s.mappings {
		if rest.over() {
			result.left = true
			break
		}
		result.mappings[p.pid] = mappingsOf{time: p.time, many: hasManyMappings(p.task)}
	}
	result.cost = begin.spent()
	return result
}

// hasManyMappings reports whether a process or a thread has many mappings. It
// assumes so where they cannot be read, which code can bring about.
func hasManyMappings(pid int) bool {
	path := "/proc/" + strconv.Itoa(pid) + "/maps"
	file, err := os.Open(path)
	if err != nil {
		return !hasEnded(err)
	}
	file.Close()
	return countLines(path, manyMappings+1, nil) > manyMappings
}

// fileLocks counts the locks of files and of parts of files that the processes of
// this namespace hold or wait for. Locks of open file descriptions, which the
// system call filter refuses, belong to no process, and the kernel shows them in
// every namespace.
func fileLocks() int {
	return countLines("/proc/locks", frame.MaxFileLocks+1, func(line []byte) bool {
		return !bytes.Contains(line, []byte(": OFDLCK "))
	})
}

// queued returns the bytes that wait in the sockets of a protocol. They are the
// fifth word of each line of its table, in hexadecimal.
func queued(protocol string) (total int64) {
	eachLine("/proc/net/"+protocol, maxSockets, func(line []byte) bool {
		words := bytes.Fields(line)
		if len(words) < 5 {
			return true
		}
		sent, received, _ := bytes.Cut(words[4], []byte(":"))
		for _, word := range [][]byte{sent, received} {
			n, _ := strconv.ParseUint(string(word), 16, 32)
			total += int64(n)
		}
		return true
	})
	return total
}

// pending returns what connections to Unix sockets that nobody has accepted may
// contain, in bytes. These are the sockets in state 2 without an inode.
func pending() (total int64) {
	eachLine("/proc/net/unix", maxSockets, func(line []byte) bool {
		words := bytes.Fields(line)
		if len(words) >= 7 && string(words[5]) == "02" && string(words[6]) == "0" {
			total += pendingCost
		}
		return true
	})
	return total
}

// countLines counts the lines of a file that matches accepts, all lines where it
// is nil. It stops at limit.
func countLines(path string, limit int, matches func([]byte) bool) (n int) {
	eachLine(path, math.MaxInt64, func(line []byte) bool {
		if matches == nil || matches(line) {
			n++
		}
		return n < limit
	})
	return n
}

// eachLine calls more with each line of a file, up to limit bytes of the file,
// until more returns false. A file that does not exist has no lines.
func eachLine(path string, limit int64, more func([]byte) bool) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	lines := bufio.NewReaderSize(io.LimitReader(file, limit), 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continue // no line of these files is as long
		}
		if err != nil || !more(line) {
			return
		}
	}
}

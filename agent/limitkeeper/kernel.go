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
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// The kernel keeps memory for code beside the pages of its processes. This file
// and mappings.go, sockets.go and instances.go count the kinds that can be counted
// at a bounded cost. Page tables and open files are counted with each process
// (scan.go) because they are cheap to read. machine.go covers the rest.

const (
	// Slow scans are a second apart and begin a second after code begins to run, so
	// that short calls do not pay for them. Many sockets can take in a gigabyte a second, and
	// are scanned more often, as is everything if the kernel's memory grows by
	// eagerGrowth bytes.
	slowScan    = time.Second
	fastScan    = 50 * time.Millisecond
	eagerGrowth = 32 << 20
	// scanRest is the pause between two scans in multiples of the cost of one.
	scanRest = 20
	// enoughRounds is how many scans of processes at rest are as good as any more.
	enoughRounds = 3
)

// kernelUse is the kernel memory of the sandbox.
type kernelUse struct {
	Bytes     int64 // of sockets, mappings and inotify queues
	Locks     int   // at most frame.MaxFileLocks + 1
	Watches   int   // of epoll instances
	Terminals int
}

// kernelScanner measures kernel memory. The reads that are slow, or that wait for
// locks which code can hold, happen in a goroutine of its own.
type kernelScanner struct {
	terminals *os.File // /dev/pts, or nil
	sockets   *file    // /proc/net/sockstat
	buf       []byte

	scans    chan kernelScan  // to the goroutine, which starts with the first scan
	results  chan kernelFound // from it
	running  bool             // a scan has no result yet
	stale    bool             // the processes of that scan have been killed since
	ended    time.Time        // when the last scan ended, or code first ran; zero before
	earliest time.Time        // when the next scan may begin
	last     kernelFound      // the last result that counts
	scanned  []process        // of the last scan that began
	rounds   int              // scans in a row of these processes, during which none ran
	many     bool             // there are many sockets, which fill from outside too
	machine  int64            // the machine's kernel memory when the last scan began
	mappings map[int]mappingsOf
}

type kernelScan struct {
	sockets   bool
	self      int       // this process, whose epoll instance does not count
	processes []process // with epoll or inotify instances to count
	mappings  []process // with mappings to count
}

// kernelFound is the result of a scan.
type kernelFound struct {
	locks    int
	watches  int
	queues   int   // inotify instances
	sockets  int64 // bytes that wait in sockets
	mappings map[int]mappingsOf
	left     bool          // there was no time to read everything
	cost     time.Duration // processor time
}

func newKernelScanner() *kernelScanner {
	// A machine without terminals has no such folder.
	terminals, _ := os.Open("/dev/pts")
	return &kernelScanner{
		terminals: terminals, sockets: openFile("/proc/net/sockstat", maxStatus),
		buf: make([]byte, 4096), mappings: map[int]mappingsOf{},
	}
}

// close ends the goroutine once its current scan is done.
func (k *kernelScanner) close() {
	k.terminals.Close()
	k.sockets.Close()
	if k.scans != nil {
		close(k.scans)
	}
}

// use returns the latest figures and begins the next scan if it is due. found are
// the sandbox's processes, self is this one, and machine is the kernel memory of the
// whole machine in bytes.
func (k *kernelScanner) use(found []process, self int, machine int64, now time.Time) kernelUse {
	k.collect(0)
	due := k.dueProcesses(found, self)
	sockets := k.countSockets()
	k.many = sockets > fewSockets
	if k.machine == 0 {
		k.machine = machine
	}
	period := slowScan
	if k.many || machine-k.machine > eagerGrowth {
		period = fastScan
	}
	if !k.running && !k.isComplete(found, self) && !k.ended.IsZero() && now.Sub(k.ended) >= period && now.After(k.earliest) {
		k.machine = machine
		k.start(kernelScan{sockets: k.many, self: self, processes: slices.Clone(found), mappings: due})
		// Most scans end within this time.
		k.collect(time.Millisecond)
	}
	use := kernelUse{Locks: k.last.locks, Watches: k.last.watches, Terminals: k.countTerminals()}
	if k.many {
		use.Bytes += k.last.sockets + int64(sockets)*socketCost
	}
	use.Bytes += int64(max(k.last.queues-fewQueues, 0)) * queueCost
	use.Bytes += costOfMappings(k.mappings, found, self)
	return use
}

// isComplete reports whether enough scans in a row covered these processes, none of
// which has run since. One is not enough: about one in ten missed some of 20,000
// locks.
func (k *kernelScanner) isComplete(found []process, self int) bool {
	return !k.running && !k.many && !k.last.left && k.rounds >= enoughRounds && sameTimes(k.scanned, found, self)
}

// begun notes that code has begun to run. A sandbox that waits for its first call needs no
// scan.
func (k *kernelScanner) begun() {
	if k.ended.IsZero() {
		k.ended = time.Now()
	}
}

// refresh counts everything that takes memory again, because some of it may no
// longer exist. The processes are stopped meanwhile. It waits for at most 2 s.
func (k *kernelScanner) refresh(found []process, self int) {
	k.collect(time.Second)
	if k.running {
		return
	}
	again := slices.DeleteFunc(slices.Clone(found), func(p process) bool { return p.pid == self })
	k.start(kernelScan{sockets: true, self: self, processes: slices.Clone(found), mappings: again})
	k.collect(time.Second)
}

// forget drops all figures after the processes have been killed.
func (k *kernelScanner) forget() {
	k.last, k.scanned, k.rounds = kernelFound{}, nil, 0
	k.stale = k.running
	clear(k.mappings)
}

// start hands a scan to the goroutine.
func (k *kernelScanner) start(s kernelScan) {
	if k.scans == nil {
		k.scans, k.results = make(chan kernelScan, 1), make(chan kernelFound, 1)
		go func(scans <-chan kernelScan, results chan<- kernelFound) {
			runtime.LockOSThread() // its processor time is the cost of a scan
			var counter instanceCounter
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

// collect takes the result of a scan if it arrives in time.
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

// countTerminals returns the number of entries of /dev/pts, ptmx left out.
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

func (s kernelScan) read(counter *instanceCounter) kernelFound {
	begin := newBudget(mappingsTime)
	result := kernelFound{locks: fileLocks(), mappings: map[int]mappingsOf{}}
	if s.sockets {
		result.sockets = socketMemory()
	}
	result.watches, result.queues, result.left = counter.count(s.processes, s.self)
	rest := newBudget(mappingsTime)
	for _, p := range s.mappings {
		if rest.over() {
			result.left = true
			break
		}
		result.mappings[p.pid] = mappingsOf{time: p.time, count: countMappings(p.task)}
	}
	result.cost = begin.spent()
	return result
}

// fileLocks counts the locks of files and byte ranges that the processes of this
// namespace hold or wait for. Locks of open file descriptions, which the system call
// filter refuses, belong to no process, and the kernel lists them in every namespace.
func fileLocks() int {
	return countLines("/proc/locks", frame.MaxFileLocks+1, func(line []byte) bool {
		return !bytes.Contains(line, []byte(": OFDLCK "))
	})
}

// countSockets returns the number of sockets of this network namespace, including
// those without a descriptor.
func (k *kernelScanner) countSockets() int {
	text, _ := k.sockets.read()
	_, rest, _ := bytes.Cut(text, []byte("sockets: used "))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return int(number(line))
}

// countLines counts the lines of a file that match, or all lines if matches is nil,
// up to limit.
func countLines(path string, limit int, matches func([]byte) bool) (n int) {
	eachLine(path, math.MaxInt64, func(line []byte) bool {
		if matches == nil || matches(line) {
			n++
		}
		return n < limit
	})
	return n
}

// eachLine calls more with each line of the first limit bytes of a file until more
// returns false. A missing file has no lines.
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
			continue // no line of these files is this long
		}
		if err != nil || !more(line) {
			return
		}
	}
}

package limitkeeper

import (
	"bytes"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

// The kernel keeps memory for code beside the pages of its processes. What can be
// counted at a bounded cost is counted here: file locks, terminals, mappings, open
// files, and what waits in sockets.

const (
	// A scan of what takes long to read comes once a second, and not before code
	// has run for so long, so that short calls pay nothing. With many sockets,
	// which fill with a gigabyte a second, it comes oftener. Its cost is a small
	// part of the time between two.
	slowScan = time.Second
	fastScan = 50 * time.Millisecond
	scanRest = 20 // times the cost of a scan pass until the next one
	// mappingsTime bounds the part of a scan that asks processes, in time of a
	// processor. Those that are left are asked by the next one.
	mappingsTime = 50 * time.Millisecond

	// fewSockets hold what is not worth a scan: some 8 MB each at most.
	fewSockets = 16
	// maxSockets bounds what is read of one table of sockets, in bytes: 14,000
	// lines.
	maxSockets = 2 << 20
	// pendingCost is what a connection to a Unix socket may hold, in bytes, that
	// nobody has accepted yet: a sender's buffer of the default size
	// (net.core.wmem_default). Its sender may have closed, so that no descriptor
	// stands for it.
	pendingCost = 212_992

	// manyMappings of one process count as all that a process may have, because
	// counting them costs more than they do. Interpreters have some 500.
	manyMappings = 4096
	// allMappings is the kernel's default of vm.max_map_count, and mappingCost
	// the size of its vm_area_struct, in bytes.
	allMappings = 65_530
	mappingCost = 200
	// openFileCost is what an open file may stand for, in bytes. A pipe has two,
	// and holds 8 KB where the user's pipes have as many pages as allowed
	// (fs.pipe-user-pages-soft, 64 MB); a socket takes 2 KB beside its buffers.
	openFileCost = 4096
	// fewFiles is the size of the table that any process may have. Kernels
	// before Linux 6.2 tell that alone, and not how much of it is used.
	fewFiles = 256
	// A process is asked how many it has when it has used so much processor time
	// since it was last asked: making one takes a microsecond.
	mappingTime = 10 * time.Millisecond
)

// kernelUse is what the kernel keeps for the sandbox.
type kernelUse struct {
	Bytes     int64 // for sockets, open files and mappings
	Locks     int   // more than frame.MaxFileLocks are not counted
	Terminals int
}

// kernelScanner counts it. What takes long, or waits for locks of the kernel that
// code can hold, is read by a goroutine of its own.
type kernelScanner struct {
	terminals *os.File // /dev/pts, or nil
	buf       []byte

	scans    chan scan      // to the goroutine, which exists from the first scan on
	results  chan scanned   // from it
	running  bool           // a scan has no result yet
	stale    bool           // its processes have been killed since it began
	ended    time.Time      // when the last scan ended, or code first ran; zero before
	earliest time.Time      // when its cost has passed scanRest times
	last     scanned        // the last result that counts
	asked    map[int]mapper // by process
}

// scan is what to read.
type scan struct {
	sockets  bool
	files    []process // whose open files to count
	mappings []process // whose mappings
}

// scanned is what was read.
type scanned struct {
	locks   int
	sockets int64 // bytes
	files   int64
	asked   map[int]mapper
	cost    time.Duration // of a processor
}

// mapper is a process that was asked how many mappings it has.
type mapper struct {
	time int64 // its processor time then, in ns
	many bool
}

func newKernelScanner() *kernelScanner {
	// A machine without terminals has no such folder.
	terminals, _ := os.Open("/dev/pts")
	return &kernelScanner{terminals: terminals, buf: make([]byte, 4096), asked: map[int]mapper{}}
}

// close ends the goroutine, as soon as a scan in the middle of which it is has
// ended.
func (k *kernelScanner) close() {
	if k.terminals != nil {
		k.terminals.Close()
	}
	if k.scans != nil {
		close(k.scans)
	}
}

// use returns what is used, as far as it is known, and has it counted anew where
// that is due. found are the sandbox's processes, self is this one.
func (k *kernelScanner) use(found []process, self int, now time.Time) kernelUse {
	k.collect(0)
	worth := k.follow(found, self)
	many := k.countSockets() > fewSockets
	period := slowScan
	if many {
		period = fastScan
	}
	if !k.running && !k.ended.IsZero() && now.Sub(k.ended) >= period && now.After(k.earliest) {
		k.begin(scan{sockets: many, files: slices.Clone(found), mappings: worth})
		// Most scans end at once, and count at once.
		k.collect(time.Millisecond)
	}
	use := kernelUse{Bytes: k.last.files * openFileCost, Locks: k.last.locks, Terminals: k.countTerminals()}
	if many {
		use.Bytes += k.last.sockets
	}
	for _, m := range k.asked {
		if m.many {
			use.Bytes += allMappings * mappingCost
		}
	}
	return use
}

// begun says that code runs, or has. A sandbox that waits for its first call has
// nothing to scan.
func (k *kernelScanner) begun() {
	if k.ended.IsZero() {
		k.ended = time.Now()
	}
}

// follow drops processes that have ended from what is known, and returns those
// that may have made mappings since they were asked, or never were.
func (k *kernelScanner) follow(found []process, self int) (worth []process) {
	still := make(map[int]mapper, len(k.asked))
	for _, p := range found {
		if p.pid == self {
			continue
		}
		m, known := k.asked[p.pid]
		known = known && m.time <= p.time // otherwise another process has the number
		if !known && k.asked[p.parent].many {
			// A fork has all mappings of its parent. It is asked as well, for it
			// may have become another program since.
			m, known = mapper{time: -int64(mappingTime), many: true}, true
		}
		if known {
			still[p.pid] = m
		}
		if !known || p.time-m.time >= int64(mappingTime) {
			worth = append(worth, p)
		}
	}
	k.asked = still
	return worth
}

// refresh counts all that is memory anew, for what was counted may have gone
// since. The processes are stopped meanwhile. It waits for at most two seconds.
func (k *kernelScanner) refresh(found []process) {
	k.collect(time.Second)
	if k.running {
		return
	}
	var again []process
	for _, p := range found {
		if k.asked[p.pid].many {
			again = append(again, p)
		}
	}
	k.begin(scan{sockets: true, files: slices.Clone(found), mappings: again})
	k.collect(time.Second)
}

// forget drops what was counted: the processes have been killed.
func (k *kernelScanner) forget() {
	k.last = scanned{}
	k.stale = k.running
	clear(k.asked)
}

// begin hands a scan to the goroutine.
func (k *kernelScanner) begin(s scan) {
	if k.scans == nil {
		k.scans, k.results = make(chan scan, 1), make(chan scanned, 1)
		go func(scans <-chan scan, results chan<- scanned) {
			runtime.LockOSThread() // its processor time is measured
			for s := range scans {
				results <- s.read()
			}
		}(k.scans, k.results)
	}
	k.scans <- s
	k.running = true
}

// collect takes the result of a scan, if there is one within the time.
func (k *kernelScanner) collect(wait time.Duration) {
	if !k.running {
		return
	}
	select {
	case result := <-k.results:
		k.take(result)
		return
	default:
	}
	if wait == 0 {
		return
	}
	select {
	case result := <-k.results:
		k.take(result)
	case <-time.After(wait):
	}
}

func (k *kernelScanner) take(result scanned) {
	k.running = false
	k.ended = time.Now()
	k.earliest = k.ended.Add(scanRest * result.cost)
	if !k.stale {
		k.last = result
		maps.Copy(k.asked, result.asked)
	}
	k.stale = false
}

// countTerminals returns how many there are, without the name of their maker.
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
			return max(total-1, 0) // ptmx
		}
		_, entries, _ := unix.ParseDirent(k.buf[:n], -1, nil)
		total += entries
	}
}

// countSockets returns how many sockets the sandbox has, with those that no descriptor
// stands for.
func (k *kernelScanner) countSockets() int {
	fd, err := unix.Open("/proc/net/sockstat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, k.buf)
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(k.buf[:n], []byte("sockets: used "))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	used, _ := strconv.Atoi(string(line))
	return used
}

// read carries a scan out.
func (s scan) read() scanned {
	begin := newBudget(mappingsTime)
	result := scanned{locks: fileLocks(), asked: map[int]mapper{}}
	if s.sockets {
		for _, name := range []string{"tcp", "tcp6", "udp", "udp6"} {
			result.sockets += queued(name)
		}
		result.sockets += pending()
	}
	for _, p := range s.files {
		result.files += openFiles(p.pid)
	}
	rest := newBudget(mappingsTime)
	for _, p := range s.mappings {
		if rest.over() {
			break
		}
		result.asked[p.pid] = mapper{time: p.time, many: hasManyMappings(p.pid)}
	}
	result.cost = begin.spent()
	return result
}

// openFiles returns how many files a process has open, as far as the kernel tells:
// since Linux 6.2 that is the size of the folder of its descriptors.
func openFiles(pid int) int64 {
	folder := "/proc/" + strconv.Itoa(pid)
	var stat unix.Stat_t
	if err := unix.Stat(folder+"/fd", &stat); err != nil || stat.Size > 0 {
		return stat.Size
	}
	status, err := os.ReadFile(folder + "/status")
	if err != nil {
		return 0
	}
	if size := field(status, "FDSize"); size > fewFiles {
		return size
	}
	return 0
}

// hasManyMappings says so of processes that do not let it count as well: code can
// make them so.
func hasManyMappings(pid int) bool {
	path := "/proc/" + strconv.Itoa(pid) + "/maps"
	file, err := os.Open(path)
	if err != nil {
		return !hasEnded(err)
	}
	file.Close()
	return countLines(path, manyMappings+1, nil) > manyMappings
}

// fileLocks counts the locks of parts of files, and of whole ones, that this
// namespace's processes hold or wait for. Locks of open files, which the system
// call filter refuses, belong to no process, and the kernel shows them to all.
func fileLocks() int {
	return countLines("/proc/locks", frame.MaxFileLocks+1, func(line []byte) bool {
		return !bytes.Contains(line, []byte(": OFDLCK "))
	})
}

// queued returns the bytes that wait in the sockets of a protocol. Each line of
// its table has them in hexadecimal, as its fifth word.
func queued(protocol string) (total int64) {
	lines("/proc/net/"+protocol, maxSockets, func(line []byte) bool {
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

// pending returns what connections to Unix sockets may hold that nobody has
// accepted: state 2, and no inode.
func pending() (total int64) {
	lines("/proc/net/unix", maxSockets, func(line []byte) bool {
		words := bytes.Fields(line)
		if len(words) >= 7 && string(words[5]) == "02" && string(words[6]) == "0" {
			total += pendingCost
		}
		return true
	})
	return total
}

// countLines counts the lines of a file that count, up to most of them.
func countLines(path string, most int, counts func([]byte) bool) (n int) {
	lines(path, 1<<62, func(line []byte) bool {
		if counts == nil || counts(line) {
			n++
		}
		return n < most
	})
	return n
}

// lines hands on each line of a file, of which it reads at most limit bytes,
// until more says no. A file that is not there has none.
func lines(path string, limit int64, more func([]byte) bool) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	buf := make([]byte, 0, 64<<10)
	for limit > 0 {
		n, err := file.Read(buf[len(buf):cap(buf)])
		limit -= int64(n)
		buf = buf[:len(buf)+n]
		rest := buf
		for {
			line, after, found := bytes.Cut(rest, []byte("\n"))
			if !found {
				break
			}
			if !more(line) {
				return
			}
			rest = after
		}
		if len(rest) == cap(buf) {
			rest = nil // no line of these files is so long
		}
		buf = buf[:copy(buf[:cap(buf)], rest)]
		if err != nil {
			return
		}
	}
}

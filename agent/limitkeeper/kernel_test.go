package limitkeeper

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

func TestFileLocks_CountsEachPart(t *testing.T) {
	file := must.Get(os.Create(filepath.Join(t.TempDir(), "file")))(t)
	defer file.Close()
	before := fileLocks()
	const parts = 50
	for i := range int64(parts) {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 2 * i, Len: 1}
		must.Do(t, unix.FcntlFlock(file.Fd(), unix.F_SETLK, &lock))
	}
	// Other programs of this machine may give theirs back meanwhile.
	if got := fileLocks(); got < parts || got < before+parts/2 {
		t.Errorf("%d locks, want %d beside the %d of others", got, parts, before)
	}
	open := unix.Flock_t{Type: unix.F_WRLCK, Start: 1000, Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &open); err != nil {
		t.Skipf("no locks of open files here: %v", err)
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil || !strings.Contains(string(text), ": OFDLCK ") {
		t.Fatalf("/proc/locks shows no lock of an open file, which must not be counted; error %v", err)
	}
	if all, got := strings.Count(string(text), "\n"), fileLocks(); got >= all {
		t.Errorf("%d locks of %d lines, one of which belongs to an open file", got, all)
	}
}

func TestQueued_CountsBytesThatNobodyReads(t *testing.T) {
	listener := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer listener.Close()
	sender := must.Get(net.Dial("tcp4", listener.Addr().String()))(t)
	defer sender.Close()
	before := queued("tcp")
	const size = 32 << 10
	if _, err := sender.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if got := queued("tcp"); got < size {
		t.Errorf("%d bytes wait in sockets, %d before, want %d more", got, before, size)
	}
	if got := queued("no such protocol"); got != 0 {
		t.Errorf("%d bytes in a table that is not there", got)
	}
}

func TestPending_CountsConnectionsThatNobodyAccepts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	listener := must.Get(net.Listen("unix", path))(t)
	defer listener.Close()
	const connections = 5
	for range connections {
		sender := must.Get(net.Dial("unix", path))(t)
		sender.Close()
	}
	if got := pending(); got < connections*pendingCost {
		t.Errorf("%d bytes, want at least those of %d connections", got, connections)
	}
}

func TestCountTerminals_CountsOpenOnes(t *testing.T) {
	k := newKernelScanner()
	defer k.close()
	before := k.countTerminals()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	defer terminal.Close()
	if got := k.countTerminals(); got < 1 || got < before {
		t.Errorf("%d terminals, want one more than %d", got, before)
	}
}

// A process with very many mappings counts as one with as many as there may be,
// until it has ended.
func TestKernelScanner_CountsMappings(t *testing.T) {
	const pages = 3 * manyMappings
	memory := must.Get(unix.Mmap(-1, 0, pages*4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE))(t)
	defer unix.Munmap(memory)
	k := newKernelScanner()
	defer k.close()
	k.begun()
	self := process{pid: os.Getpid(), task: os.Getpid()}
	ask := func() int64 {
		k.ended = time.Time{}.Add(1) // long ago
		k.earliest = time.Time{}
		self.time += int64(mappingTime)
		k.use([]process{self}, 0, 0, time.Now())
		for k.running {
			k.collect(time.Second)
		}
		return costOfMappings(k.mappings, []process{self}, 0)
	}
	if got := ask(); got != 0 {
		t.Errorf("%d bytes of mappings, want none", got)
	}
	for page := 0; page < pages; page += 2 {
		must.Do(t, unix.Mprotect(memory[page*4096:(page+1)*4096], unix.PROT_READ))
	}
	if got, want := ask(), int64(allMappings*mappingCost); got != want {
		t.Errorf("%d bytes of %d mappings, want %d", got, pages, want)
	}
	child := process{pid: self.pid + 1, task: self.pid + 1, parent: self.pid}
	k.dueProcesses([]process{self, child}, 0)
	if got := costOfMappings(k.mappings, []process{self, child}, 0); got != 2*allMappings*mappingCost {
		t.Errorf("%d bytes with a child, want twice as much", got)
	}
	k.dueProcesses(nil, 0)
	if got := costOfMappings(k.mappings, nil, 0); got != 0 {
		t.Errorf("%d bytes of a process that has ended", got)
	}
}

// The links of a mapping grow with the generations of forks. A process whose parent has
// ended may have as many ancestors as there are other processes.
func TestCostOfMappings_CountsGenerations(t *testing.T) {
	const count, each = 60, 3000
	of := func(parent func(n int) int) int64 {
		found, mappings := []process{{pid: 1}}, map[int]mappingsOf{}
		for n := range count {
			found = append(found, process{pid: n + 2, parent: parent(n)})
			mappings[n+2] = mappingsOf{count: each}
		}
		return costOfMappings(mappings, found, 1)
	}
	chain := of(func(n int) int { return n + 1 })
	workers := of(func(n int) int { return min(n+1, 2) })
	orphans := of(func(int) int { return 1 })
	daemon := of(func(n int) int { return []int{1000, 2}[min(n, 1)] })
	const link = each * linkCost
	if want := int64(count * (count + 1) / 2 * link); chain != want {
		t.Errorf("a chain of forks: %d bytes, want %d", chain, want)
	}
	if want := int64((2*count - 1) * link); workers != want || daemon != want {
		t.Errorf("workers of one process: %d bytes, of a daemon %d, want %d", workers, daemon, want)
	}
	if want := int64(count * count * link); orphans != want {
		t.Errorf("processes whose parents have ended: %d bytes, want %d", orphans, want)
	}
}

// What was counted before everything was killed is not counted again, nor is the
// result of a scan that was under way.
func TestKernelScanner_ForgetsWhatWasKilled(t *testing.T) {
	k := newKernelScanner()
	defer k.close()
	k.last, k.running, k.results = kernelFound{locks: 9999, sockets: 1 << 40}, true, make(chan kernelFound, 1)
	k.forget()
	k.results <- kernelFound{locks: 8888}
	if got := k.use(nil, 0, 0, time.Now()); got.Locks != 0 || got.Bytes >= 1<<40 {
		t.Errorf("%+v, want none of what was killed", got)
	}
	if k.running || k.stale {
		t.Error("the result is still awaited")
	}
}

func TestCrossed_NamesWhatTheKernelKeeps(t *testing.T) {
	limits := Limits{Memory: 64 << 20, Tasks: 10}
	for _, test := range []struct {
		use         kernelUse
		limit       string
		value, used int64
	}{
		{kernelUse{Bytes: 63 << 20, Locks: frame.MaxFileLocks, Terminals: frame.MaxTerminals}, "", 0, 0},
		{kernelUse{Bytes: 65 << 20}, frame.Memory, 64, 65},
		{kernelUse{Locks: frame.MaxFileLocks + 1}, frame.FileLocks, 4096, 4097},
		{kernelUse{Terminals: frame.MaxTerminals + 1}, frame.Terminals, 64, 65},
	} {
		c, crossed := limits.crossed(Usage{Kernel: test.use})
		if crossed != (test.limit != "") || c.Name != test.limit || c.Value != test.value || crossed && c.Used != test.used {
			t.Errorf("%+v: limit %q of %d crossed by %d, want %q of %d by %d", test.use, c.Name, c.Value, c.Used, test.limit, test.value, test.used)
		}
	}
}

// A name that code gives to shared memory does not make it a file's.
func TestMapping_NamedSharedMemoryIsMemory(t *testing.T) {
	for path, want := range map[string]int64{
		"/dev/zero (deleted)": 100 << 10,
		"[anon_shmem:x]":      100 << 10,
		"/nix/store/library":  4 << 10,
	} {
		if got := (mapping{path: path, inode: true, pss: 100, anonymous: 4}).memory(); got != want {
			t.Errorf("%s: %d bytes, want %d", path, got, want)
		}
	}
}

func TestOpenFiles_CountsDescriptors(t *testing.T) {
	count := func(task int) int64 {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", task))
		return openFiles(task, status)
	}
	before := count(os.Getpid())
	const many = 2 * fewFiles
	for range many {
		file := must.Get(os.Open(os.DevNull))(t)
		defer file.Close()
	}
	if got := count(os.Getpid()); got < before+many-fewFiles {
		t.Errorf("%d open files, want about %d more than %d", got, many, before)
	}
	if got := count(1 << 30); got != 0 {
		t.Errorf("%d open files of no process", got)
	}
}

// A process with few files counts what the kernel keeps for them, each further file
// as its part of the machine's.
func TestCostOfFiles_GrowsWithManyFiles(t *testing.T) {
	s := &scanner{open: 10 << 10}
	for count, want := range map[int64]int64{0: 0, 10: 40 << 10, usualFiles: 256 << 10, usualFiles + 100: 256<<10 + 1000<<10} {
		if got := s.costOfFiles(count); got != want {
			t.Errorf("%d files count as %d bytes, want %d", count, got, want)
		}
	}
	if cost := openFileCost(); cost < minFileCost || cost > maxFileCost {
		t.Errorf("a file counts as %d bytes here", cost)
	}
}

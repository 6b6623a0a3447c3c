package limitkeeper

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

func TestKeeper_StopsCodeThatCrossesALimit(t *testing.T) {
	for _, name := range []string{"anonymous", "shared", "undumpable", "files", "segments", "tables", "many", "copies", "exited leader", "exited leader, shared", "exited leaders"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := inJail(t, name)
			switch {
			case r.Crossing == nil:
				t.Fatalf("it was not stopped: %+v", r)
			case r.Crossing.Name != frame.Memory || r.Crossing.Value != memoryLimit>>20:
				t.Errorf("limit %s of %d, want %s of %d", r.Crossing.Name, r.Crossing.Value, frame.Memory, memoryLimit>>20)
			}
			if used := r.Crossing.Usage.Memory(); used <= memoryLimit {
				t.Errorf("stopped at %d bytes, below the limit of %d", used, memoryLimit)
			}
			if r.Status != -1 {
				t.Errorf("the code ended by itself with %d", r.Status)
			}
			t.Logf("%d MiB in processes, %d MiB in files, %v after the crossing", r.Crossing.Usage.Processes>>20, r.Crossing.Usage.Files>>20, r.After)
		})
	}
	for _, name := range []string{"forks", "threads"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := inJail(t, name)
			if r.Crossing == nil || r.Crossing.Name != frame.PIDs || r.Crossing.Value != taskLimit {
				t.Fatalf("crossing %+v, want of %s", r.Crossing, frame.PIDs)
			}
		})
	}
}

// A sandbox in which nothing runs is scanned seldom. The limits apply all the same to what
// runs again: the one process that is left, one that it starts, and one beside it.
func TestKeeper_StopsCodeThatRunsAgainAfterRest(t *testing.T) {
	for _, name := range []string{"late", "late child", "late beside another"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := inJail(t, name)
			if !r.Rested || r.Crossing == nil || r.Crossing.Name != frame.Memory {
				t.Fatalf("%+v, want that it crosses the limit of memory after a time of rest", r)
			}
			t.Logf("%v after the crossing, at %d MiB", r.After, r.Crossing.Usage.Memory()>>20)
		})
	}
	t.Run("without a keeper", func(t *testing.T) {
		t.Parallel()
		if r := inJail(t, "late", "without a keeper"); !r.Rested || r.Crossing != nil || r.Used != mostMemory {
			t.Errorf("without a keeper: %+v, want %d bytes used after a time of rest", r, mostMemory)
		}
	})
}

// The kernel enforces the resource limits on each process, in a jail of an
// ordinary user and without a limit keeper.
func TestRlimits_HoldWithoutAKeeper(t *testing.T) {
	for _, name := range []string{"refused", "too large"} {
		if r := inJail(t, name, "without a keeper"); r.Status != 0 {
			t.Errorf("%s: %+v, want status 0", name, r)
		}
	}
}

// Nothing runs during an exact scan, and everything goes on after it.
func TestKeeper_StopsEverythingForAnExactScan(t *testing.T) {
	inJail(t, "resume")
}

// Code within the limits is not stopped, and code without a keeper uses what it
// wants: what the other tests show is the keeper's doing.
func TestKeeper_LeavesOtherCodeAlone(t *testing.T) {
	for _, name := range []string{"inherited", "mapped files", "spawning"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := inJail(t, name)
			if r.Crossing != nil {
				t.Errorf("it was stopped, with %d MiB in processes and %d MiB in files", r.Crossing.Usage.Processes>>20, r.Crossing.Usage.Files>>20)
			}
			if r.Bound <= memoryLimit {
				t.Errorf("the sum over the processes was at most %d bytes, which is within the limit and shows nothing", r.Bound)
			}
		})
	}
	t.Run("without a keeper", func(t *testing.T) {
		t.Parallel()
		r := inJail(t, "anonymous", "without a keeper")
		if r.Crossing != nil || r.Used != mostMemory || r.Status != 0 {
			t.Errorf("without a keeper: %+v, want %d bytes used and status 0", r, mostMemory)
		}
	})
}

func TestLimits_PauseByTheDistance(t *testing.T) {
	limits := Limits{Memory: 512 << 20, Tasks: 256}
	far := Usage{Processes: 20 << 20, Tasks: 1}
	tests := []struct {
		name             string
		now, last        Usage
		pause, low, high time.Duration
		busy             bool
	}{
		{"a call begins", far, Usage{}, 0, nearPause, farPause, true},
		{"half the memory", Usage{Processes: 256 << 20}, far, farPause, 40 * time.Millisecond, 60 * time.Millisecond, true},
		{"next to the memory", Usage{Files: 500 << 20}, far, farPause, nearPause, nearPause, true},
		{"above it", Usage{Files: 600 << 20}, far, farPause, nearPause, nearPause, true},
		{"next to the tasks", Usage{Tasks: 255}, far, farPause, nearPause, nearPause, true},
	}
	for _, test := range tests {
		if got := limits.pause(test.now, test.last, test.pause, test.busy); got < test.low || got > test.high {
			t.Errorf("%s: %v, want %v to %v", test.name, got, test.low, test.high)
		}
	}
	// At rest, up to the longest.
	pause := nearPause
	for range 10 {
		pause = limits.pause(Usage{}, Usage{}, pause, false)
	}
	if got := (Limits{}).pause(far, far, idlePause, false); got != idlePause {
		t.Errorf("at rest: %v, want %v", got, idlePause)
	}
	if pause > idlePause {
		t.Errorf("at rest: %v, want at most %v", pause, idlePause)
	}
}

func TestScanner_KnowsWhatHasRun(t *testing.T) {
	cat := exec.Command("cat")
	in := must.Get(cat.StdinPipe())(t)
	out := must.Get(cat.StdoutPipe())(t)
	must.Do(t, cat.Start())
	s := must.Get(newScanner(nil))(t)
	defer s.close()
	scan := func() {
		p, _, ok := s.process(cat.Process.Pid)
		if !ok {
			t.Fatal("it is not found")
		}
		s.found = []process{p, {pid: s.self}}
	}
	work := func() {
		if _, err := io.WriteString(in, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	work()
	// It goes to sleep soon after its answer.
	for end := time.Now().Add(10 * time.Second); ; scan() {
		time.Sleep(5 * time.Millisecond)
		if len(s.found) > 0 && s.unchanged() {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it is never reported as unchanged")
		}
	}
	work()
	if s.unchanged() {
		t.Error("it worked, and is reported as unchanged")
	}
	scan()
	in.Close()
	must.Do(t, cat.Wait())
	if s.unchanged() {
		t.Error("it has ended, and is reported as unchanged")
	}
}

func TestField_CannotBeForged(t *testing.T) {
	status := []byte("Name:\tRssAnon: 9\nUmask:\t0022\nPPid:\t7\nRssAnon:\t     112 kB\nVmPTE:\t 52 kB\nThreads:\t3\n")
	got := []int64{field(status, "RssAnon"), field(status, "VmPTE"), field(status, "Threads"), field(status, "PPid"), field(status, "VmSwap")}
	if diff := cmp.Diff([]int64{112, 52, 3, 7, 0}, got); diff != "" {
		t.Error(diff)
	}
}

func TestHeader_ReadsMappings(t *testing.T) {
	for line, want := range map[string]mapping{
		"7f00-7f01 rw-p 00000000 00:00 0 \n":                                 {},
		"7f00-7f01 rw-p 00000000 00:00 0                          [heap]\n":  {path: "[heap]"},
		"7f00-7f01 rw-s 00000000 00:01 1039           /dev/zero (deleted)\n": {inode: true, path: "/dev/zero (deleted)"},
		"7f00-7f01 r--p 00002000 fe:00 29033 /nix/store/a b/lib/libc.so.6\n": {inode: true, path: "/nix/store/a b/lib/libc.so.6"},
		"7f00-7f01 rw-s 00000000 00:01 3 /memfd:x\\012Pss: 0 (deleted)\n":    {inode: true, path: "/memfd:x\\012Pss: 0 (deleted)"},
	} {
		if diff := cmp.Diff(want, header([]byte(line)), cmp.AllowUnexported(mapping{})); diff != "" {
			t.Errorf("%q: %s", line, diff)
		}
	}
}

func TestMapping_CountsItsOwnMemory(t *testing.T) {
	for name, test := range map[string]struct {
		mapping mapping
		want    int64
	}{
		"heap":                         {mapping{pss: 10, anonymous: 20, swap: 1}, 11 << 10},
		"a library's code":             {mapping{inode: true, path: "/lib/a", pss: 10}, 0},
		"a library's data, written to": {mapping{inode: true, path: "/lib/a", pss: 10, anonymous: 4}, 4 << 10},
		"a file in /workspace":         {mapping{inode: true, path: "/workspace/f", pss: 100}, 0},
		"shared, of no file":           {mapping{inode: true, path: "/dev/zero (deleted)", pss: 100}, 100 << 10},
	} {
		if got := test.mapping.memory(); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestApply_LowersLimits(t *testing.T) {
	if os.Getpid() == 1 {
		t.Skip("it starts a process")
	}
	limits := Rlimits(Limits{Memory: 512 << 20, Tasks: 256})
	var names []string
	for _, l := range limits {
		names = append(names, l.Name)
	}
	if got := strings.Join(names, " "); !strings.HasPrefix(got, "core nofile sigpending msgqueue memlock rtprio nice data") {
		t.Errorf("limits %q", got)
	}
	pid := sleeper(t)
	for _, resource := range []int{unix.RLIMIT_RTPRIO, unix.RLIMIT_NICE} {
		// As the users of audio software have them; it takes CAP_SYS_RESOURCE.
		_ = unix.Prlimit(pid, resource, &unix.Rlimit{Cur: 40, Max: 40}, nil)
	}
	must.Do(t, Apply(pid, limits))
	for _, l := range limits {
		var got unix.Rlimit
		must.Do(t, unix.Prlimit(pid, l.Resource, nil, &got))
		if got.Max > l.Value.Max {
			t.Errorf("%s: %d, want at most %d", l.Name, got.Max, l.Value.Max)
		}
	}
	// A lower one stays.
	if err := Apply(pid, []Rlimit{{unix.RLIMIT_NOFILE, "nofile", unix.Rlimit{Cur: 9000, Max: 9000}}}); err != nil {
		t.Errorf("a limit that is lower already: %v", err)
	}
}

// BenchmarkStop reports how far code gets that takes memory as fast as it
// can: the time from the crossing to the kill, and the memory above the limit.
func BenchmarkStop(b *testing.B) {
	var after time.Duration
	var above float64
	for range b.N {
		r := inJail(b, "anonymous")
		if r.Crossing == nil {
			b.Fatal("it was not stopped")
		}
		after = max(after, r.After)
		above = max(above, 100*(float64(r.Used)/memoryLimit-1))
	}
	b.ReportMetric(float64(after.Microseconds())/1000, "worst-ms-after")
	b.ReportMetric(above, "worst-%-above")
}

// BenchmarkScan is the cost of one cheap scan of this machine's processes.
func BenchmarkScan(b *testing.B) {
	s := must.Get(newScanner([]string{"/dev/shm"}))(b)
	defer s.close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.scan(0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(s.found)), "processes")
	b.Log(fmt.Sprint(len(s.found)))
}

// An exact scan of a process that takes memory meanwhile would come too late: it is given
// up, which costs no more than it took and does not count as a result.
func TestExact_GivesUpWhenTheSandboxGrows(t *testing.T) {
	const pages = 40_000 // so many mappings take longer than nearPause to read
	memory := must.Get(unix.Mmap(-1, 0, pages*4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE))(t)
	defer unix.Munmap(memory)
	for page := 0; page < pages; page += 2 {
		must.Do(t, unix.Mprotect(memory[page*4096:(page+1)*4096], unix.PROT_READ|unix.PROT_WRITE))
	}
	for page := 0; page < pages; page += 2 {
		memory[page*4096] = 1
	}
	s := must.Get(newScanner(nil))(t)
	defer s.close()
	own, _, ok := s.process(os.Getpid())
	if !ok || own.memory < growing {
		t.Fatalf("%+v, want this process with more than %d bytes", own, growing)
	}
	own.memory = 0 // so that its memory is growth
	s.found = []process{own}
	if total, cost, ok := s.exact(time.Minute, 1<<40); ok || cost > time.Second {
		t.Errorf("%d bytes, %v, at a cost of %v, want no result", total, ok, cost)
	}
}

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// Limits of these tests, small enough to be crossed without harm to the
// machine. All code here is bounded by itself too.
const (
	memoryMB = 96
	tasks    = 40
)

// limited returns the variable that gives the environments small limits.
func limited(t testing.TB) string {
	t.Helper()
	return "NIX_SANDBOX_METADATA=" + mcptest.Metadata(t, withLimits(t))
}

// withLimits returns the environments with small limits: in the metadata, and in copies of
// bin/session-run, which holds those that the agent keeps.
func withLimits(t testing.TB) map[string]map[string]any {
	t.Helper()
	all := environments(t)
	for name, fields := range all {
		built := fields["session_exec"].(string)
		text := must.Get(os.ReadFile(built))(t)
		was := fmt.Sprintf(`"--memory-mb","%v","--pids","%v"`, fields["memory_mb"], fields["pids"])
		if strings.Count(string(text), was) != 1 {
			t.Fatalf("%s does not hold the limits %s", built, was)
		}
		now := fmt.Sprintf(`"--memory-mb","%d","--pids","%d"`, memoryMB, tasks)
		path := filepath.Join(t.TempDir(), name)
		must.Do(t, os.WriteFile(path, []byte(strings.Replace(string(text), was, now, 1)), 0o755))
		fields["session_exec"], fields["memory_mb"], fields["pids"] = path, memoryMB, tasks
	}
	return all
}

// hog takes MiB of memory, one after the other, touches them and gives them
// back.
func hog(mib int) string {
	return fmt.Sprintf("b = []\nfor n in range(%d): b.append(bytearray(b'x') * (1 << 20))\nprint(len(b)); del b", mib)
}

// crowd starts processes that end by themselves, and counts them.
func crowd(n int) string {
	return fmt.Sprintf("n=0; while ((n < %d)); do sleep 3 & n=$((n + 1)); done 2>/dev/null; kill $(jobs -p) 2>/dev/null; wait; echo $n", n)
}

// lost is what an answer says of the session, after what it says of a limit.
const lost = "; the session's variables are lost, its files in /workspace are kept]"

func TestMemoryLimit(t *testing.T) {
	c := start(t, limited(t))
	expect(t, run(c, "python", hog(memoryMB/2)), "48\n")
	got := run(c, "python", hog(2*memoryMB))
	if want := "[stopped: used more than 96 MB of memory]"; !got.IsError || got.Text() != want {
		t.Errorf("%q, want %q", got.Text(), want)
	}
	if got.Fact("outcome") != "memory" || got.Fact("limit") != "memory_mb" {
		t.Errorf("facts %v", got.Meta)
	}
	if used, ok := got.Fact("limit_used").(float64); !ok || used <= memoryMB || used > 2*memoryMB {
		t.Errorf("used %v MiB", got.Fact("limit_used"))
	}
	by, _ := got.Fact("limits_by").(string)
	if by != sandbox.ByGroup && by != sandbox.ByAgent || !strings.Contains(c.Log(), "limits by="+by) {
		t.Errorf("limits are held by %q, the log says %s", by, c.Log())
	}
}

// Many small processes count together, and what they share counts once.
func TestMemoryOfManyProcesses(t *testing.T) {
	c := start(t, limited(t))
	code := func(mib int) string {
		return fmt.Sprintf(`
import os, time
shared = bytearray(b'x') * (32 << 20)
for n in range(4):
    if os.fork() == 0:
        own = bytearray(b'x') * (%d << 20)
        time.sleep(1)
        os._exit(0)
for n in range(4): os.wait()
print('ended')`, mib)
	}
	expect(t, run(c, "python", code(6)), "ended\n")
	if got := run(c, "python", code(30)); !strings.Contains(got.Text(), "[stopped: used more than 96 MB of memory]") {
		t.Errorf("%q", got.Text())
	}
}

// Memory that the kernel fills in one system call, which no signal but SIGKILL
// ends, is stopped as soon as other memory is.
func TestMemoryLimitDuringAMapping(t *testing.T) {
	c := start(t, limited(t))
	got := run(c, "python", "import mmap\nmmap.mmap(-1, 1 << 30, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)")
	used, _ := got.Fact("limit_used").(float64)
	if got.Fact("outcome") != "memory" || used > 3*memoryMB {
		t.Errorf("%v MB were used: %q", used, got.Text())
	}
}

// fillLocked has the kernel fill a mapping while other threads wait to make
// one, behind whom everybody waits who asks for the process's mappings.
const fillLocked = `
import ctypes, mmap, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def take(size, flags): libc.mmap(None, ctypes.c_size_t(size), 3, flags | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
def wait():
    time.sleep(.01)
    take(4096, mmap.MAP_PRIVATE)
for n in range(4): threading.Thread(target=wait, daemon=True).start()
take(1 << 30, mmap.MAP_SHARED | mmap.MAP_POPULATE)
`

// A process whose mappings cannot be read is stopped too.
func TestMemoryLimitOfALockedProcess(t *testing.T) {
	c := start(t, limited(t))
	got := run(c, "python", fillLocked)
	used, _ := got.Fact("limit_used").(float64)
	if got.Fact("outcome") != "memory" || used > 3*memoryMB {
		t.Errorf("%v MB were used: %q", used, got.Text())
	}
}

// stopStarts leaves a process behind that ends its interpreter at each call and
// stops the next one before it is one, and then takes more than the limit.
const stopStarts = `
import os, signal, time
if os.fork() == 0:
    os.setsid()
    def stopped():
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try: status = open(f'/proc/{pid}/stat').read()
            except OSError: continue
            if '(nix-sandbox-age) T' in status: return True
    while not os.path.exists('go'): time.sleep(.001)
    os.kill(-1, signal.SIGKILL)
    end = time.monotonic() + .05
    while time.monotonic() < end:
        try: os.kill(-1, signal.SIGSTOP)
        except OSError: pass
    if stopped():
        open('stopped', 'w')
        memory = bytearray(b'x') * (%d << 20)
        time.sleep(1.5)
        open('held', 'w')
    os.kill(-1, signal.SIGCONT)
    os._exit(0)
`

// The limit is enforced while an interpreter starts, because the code decides how
// long that takes.
func TestMemoryLimitDuringAStart(t *testing.T) {
	c := start(t, limited(t))
	for range 30 {
		in(c, "s", "python", fmt.Sprintf(stopStarts, 2*memoryMB))
		got := in(c, "s", "python", "open('go', 'w'); import time; time.sleep(20)")
		files := in(c, "s", "python", "import os\nfor name in ('go', 'stopped', 'held'):\n    if os.path.exists(name): print(name); os.unlink(name)").Text()
		switch {
		case strings.Contains(files, "held"):
			t.Fatalf("%d MB were held for 1.5 s; the call's answer is %q", 2*memoryMB, got.Text())
		case strings.Contains(files+got.Text(), "used more than 96 MB"):
			return
		}
	}
	t.Skip("no start was stopped in time")
}

func TestProcessLimit(t *testing.T) {
	c := start(t, limited(t))
	expect(t, run(c, "bash", crowd(tasks/2)), "20\n")
	// The kernel does not count the processes of the machine's root: the limit
	// keeper ends those. Others' it refuses. Each process lives longer than a busy
	// machine needs to start all of them.
	got := run(c, "python", `
import subprocess
try:
    for n in range(70):
        subprocess.Popen(["sleep", "60"])
except BlockingIOError as error:
    print(error)
print("started")`)
	stopped := got.IsError && strings.HasSuffix(got.Text(), "[stopped: more than 40 processes and threads]") && got.Fact("limit") == "pids"
	refused := strings.Contains(got.Text(), "Resource temporarily unavailable")
	if !stopped && !refused {
		t.Errorf("%q, %v", got.Text(), got.Meta)
	}
}

// A session that is stopped goes on without its variables, and its neighbour
// notices nothing.
func TestSessionSurvivesALimit(t *testing.T) {
	c := start(t, limited(t))
	in(c, "other", "python", "y = 7")
	in(c, "s", "python", "x = 1; open('file', 'w').write('kept')")
	hogging := c.SendRun(mcptest.Arguments{Code: "print('before', flush=True)\n" + hog(2*memoryMB), Env: "python", Session: "s"})
	for n := range 5 {
		expect(t, in(c, "other", "python", "y += 1; print(y)"), strconv.Itoa(8+n)+"\n")
	}
	if got, want := c.AwaitRun(hogging).Text(), "before\n[stopped: used more than 96 MB of memory"+lost; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	expect(t, in(c, "s", "python", "print(open('file').read(), 'x' in globals())"), "kept False\n")
	expect(t, in(c, "s", "python", hog(memoryMB/2)), "48\n")
	expect(t, in(c, "other", "python", "print(y)"), "12\n")
}

// /workspace is full before memory is: that is an error of the write alone.
func TestWorkspaceIsFull(t *testing.T) {
	c := start(t)
	code := func(mib int) string {
		return fmt.Sprintf("head -c %dM /dev/zero > x && echo wrote; rm x", mib)
	}
	expect(t, run(c, "bash", code(100)), "wrote\n")
	got := in(c, "s", "bash", code(300))
	if !strings.Contains(got.Text(), "No space left on device") || strings.Contains(got.Text(), "wrote") || strings.Contains(got.Text(), "stopped") {
		t.Errorf("%q", got.Text())
	}
	expect(t, in(c, "s", "bash", code(100)), "wrote\n")
}

// Files count as memory. They outlive what is killed, so the sandbox ends,
// and the answer says that they are gone.
func TestFilesAreMemory(t *testing.T) {
	c := start(t, limited(t))
	expect(t, in(c, "s", "bash", "head -c 48M /dev/zero > x && echo wrote"), "wrote\n")
	expectError(t, in(c, "s", "bash", "head -c 150M /dev/zero > y && echo wrote"),
		"used more than 96 MB of memory", "the session's variables and files are lost")
	if got := in(c, "s", "bash", "echo again; ls"); !strings.HasPrefix(got.Text(), "again\n") {
		t.Errorf("after it: %q", got.Text())
	}
}

// The limit keeper of a sandbox at rest asks only whether anything runs, which costs next
// to nothing.
func TestIdleSandboxIsCheap(t *testing.T) {
	t.Parallel()
	c := start(t)
	in(c, "s", "python", "x = 1")
	// used returns the processor time of the processes that there were at the last start,
	// and false where one of them has ended.
	var all []int
	used := func() (total time.Duration, complete bool) {
		for _, pid := range all {
			p, err := procfs.Read(pid)
			if err != nil {
				return 0, false
			}
			own, _ := p.Times()
			total += own
		}
		return total, true
	}
	// That is 5 % of a processor, and half of one that is emulated.
	most := 100 * time.Millisecond
	if patience.Factor() > 1 {
		most = time.Second
	}
	// The limit keeper of an idle sandbox measures less often after a while, and the next
	// sandbox of the pool starts meanwhile.
	patience.Until(t, fmt.Sprintf("the sandboxes use at most %v of processor time in 2 s", most), func() bool {
		all = procfs.Descendants(c.PID())
		before, _ := used()
		time.Sleep(2 * time.Second)
		after, complete := used()
		return complete && len(all) >= 2 && after-before <= most
	})
	// The control: half a second of work is seen.
	before, _ := used()
	in(c, "s", "python", "import time\nbegin = time.process_time()\nwhile time.process_time() < begin + 0.5: pass")
	if after, _ := used(); after-before < 300*time.Millisecond {
		t.Errorf("half a second of work is %v of processor time", after-before)
	}
}

// What the agent's limit keeper does not stop, the kernel does, for the sandbox as
// a whole: here the control group's limit is below the limit keeper's.
func TestKernelStopsWithDelegate(t *testing.T) {
	// The groups that are counted are the session's alone.
	c := start(t, tightened(t, map[string]any{"memory_mb": 64, "prewarm": 0}))
	if !strings.Contains(c.Log(), "limits by=cgroup") {
		t.Skip("no control group can be made here")
	}
	made := func() []string { return groups(t, c.PID()) }
	expect(t, in(c, "s", "python", hog(32)), "32\n")
	if len(made()) != 1 {
		t.Errorf("a session has the groups %v", made())
	}
	got := in(c, "s", "python", hog(192))
	want := "[stopped: used more than 64 MB of memory; the session's variables and files are lost, and its next call starts a new one]"
	if !got.IsError || got.Text() != want || got.Fact("limit") != "memory_mb" || got.Fact("limits_by") != "cgroup" {
		t.Errorf("%q, want %q; facts %v", got.Text(), want, got.Meta)
	}
	patience.Wait(t, patience.Long, func() string { return fmt.Sprint(made()) }, func() bool { return len(made()) == 0 })
	if got := in(c, "s", "python", "print(1)"); !strings.HasPrefix(got.Text(), "1\n") {
		t.Errorf("after it: %q", got.Text())
	}
}

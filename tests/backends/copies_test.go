package backends

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// The first start saves a machine and the later ones are copies of it, as the answers say.
// Where what was saved is gone or damaged, or the machine is another one, the answer is
// right, and there is a new one for the next start. A server that saves none starts cold:
// the control.
func TestSnapshot_IsUsedUntilItIsNotTheMachine(t *testing.T) {
	long(t)
	cache, state := cache(t), t.TempDir()
	answers := func(want string, environ ...string) {
		t.Helper()
		s := serveAs(t, state, serving{cache: cache, environ: environ}, "bash")
		if answer := s.call("bash", "", "", "echo right"); answer.IsError || answer.Texts()[0] != "right\n" || answer.Fact("start") != want {
			t.Errorf("the answer is %q, started %v, want a start that is a %s", answer.Text(), answer.Fact("start"), want)
		}
		s.end()
	}
	saved := func() (folder, meta string) {
		t.Helper()
		all := snapshots(t, cache)
		if len(all) != 1 {
			t.Fatalf("there are the snapshots %q", all)
		}
		return all[0], hash(t, filepath.Join(all[0], "meta"))
	}
	answers("cold", "NIX_SANDBOX_VM_SNAPSHOTS=0")
	if all := snapshots(t, cache); len(all) != 0 {
		t.Errorf("%q was saved", all)
	}
	answers("copy")
	folder, meta := saved()
	answers("copy")
	if _, again := saved(); again != meta {
		t.Error("the second start has saved a machine too")
	}
	for name, damage := range map[string]func(){
		"its folder is gone": func() { must.Do(t, os.RemoveAll(folder)) },
		"a byte of its description is another": func() {
			file := filepath.Join(folder, "meta")
			text := must.Get(os.ReadFile(file))(t)
			text[len(text)/2] ^= 1
			must.Do(t, os.Remove(file))
			must.Write(t, file, string(text), 0o400)
		},
	} {
		before := meta
		damage()
		answers("copy")
		if _, meta = saved(); meta == before {
			t.Errorf("%s: it is used", name)
		}
	}
	// Another kernel, or other arguments of it, are other words of the description.
	other := variant(t, artifact(t, "bash"), `"append":"`, `"append":"audit=0 `)
	if output := runs(t, other, cache, "echo right", nil); output != "right\n" {
		t.Errorf("another machine prints %q", output)
	}
	if all := snapshots(t, cache); len(all) != 2 {
		t.Errorf("there are the snapshots %q, want one of each machine", all)
	}
}

// Of machines that start at once where none is saved, one is saved, and all answer.
func TestSnapshot_IsMadeByOneOfManyStarts(t *testing.T) {
	long(t)
	folder, cache := artifact(t, "bash"), cache(t)
	made := map[uint64]bool{} // by the inodes of their folders
	note := func() {
		for _, partial := range must.Get(filepath.Glob(filepath.Join(cache, "nix-sandbox-mcp/vm/snapshots/*.partial")))(t) {
			var status syscall.Stat_t
			if syscall.Stat(partial, &status) == nil {
				made[status.Ino] = true
			}
		}
	}
	var all sync.WaitGroup
	for n := range 10 {
		all.Go(func() {
			if output := runs(t, folder, cache, fmt.Sprintf("echo %d", n), nil); output != fmt.Sprintf("%d\n", n) {
				t.Errorf("machine %d prints %q", n, output)
			}
		})
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		all.Wait()
	}()
	patience.Wait(t, 3*machineTime, func() string { return "not all machines have answered" }, func() bool {
		note()
		select {
		case <-over:
			return true
		default:
			return false
		}
	})
	if len(made) != 1 || len(snapshots(t, cache)) != 1 {
		t.Errorf("%v were made, and there are %q", made, snapshots(t, cache))
	}
}

// fills is code that fills the memory of its machine with files, which ends it.
const fills = "head -c 200M /dev/zero >/tmp/a; head -c 100M /dev/zero >/workspace/b; head -c 200M /dev/zero >/dev/shm/c"

// However many copies there were, and whatever they did, what they are copies of is as it
// was: QEMU has it open for reading alone. A copy has the host's time, although the machine
// was saved nearly a day ago, as far as its description says.
func TestSnapshot_OutlivesManyCopies(t *testing.T) {
	long(t)
	const copies, filling = 50, 3
	folder, cache := artifact(t, "bash"), cache(t)
	saved := saves(t, folder, cache)
	memory, meta := filepath.Join(saved, "memory"), filepath.Join(saved, "meta")
	age(t, meta, 23*time.Hour)
	before, described := hash(t, memory), hash(t, meta)
	for n := range copies {
		m := start(t, folder, cache, "")
		if n == 0 {
			isOnlyRead(t, qemuOf(t, m.Cmd.Process.Pid), memory)
		}
		asked := time.Now()
		now := must.Get(strconv.ParseFloat(strings.TrimSpace(m.run("echo $EPOCHREALTIME")), 64))(t)
		expectTime(t, fmt.Sprintf("copy %d", n), time.UnixMicro(int64(now*1e6)), asked)
		if n < filling {
			_, r, err := m.result(fills)
			_ = m.Cmd.Wait() // for the log
			if err == nil || !strings.Contains(m.Log.String(), "used more than 256 MB of memory") {
				t.Errorf("copy %d fills its memory with %+v, error %v: %s", n, r, err, &m.Log)
			}
		}
		m.Close()
	}
	if hash(t, memory) != before || hash(t, meta) != described {
		t.Error("what they are copies of is another one afterwards")
	}
	// Otherwise they were copies of something else.
	if now := snapshots(t, cache); len(now) != 1 || now[0] != saved {
		t.Errorf("there are the snapshots %q, there was %s", now, saved)
	}
}

// isOnlyRead fails the test unless a process has a file open, and for reading alone.
func isOnlyRead(t *testing.T, pid int, file string) {
	t.Helper()
	var want, got unix.Stat_t
	must.Do(t, unix.Stat(file, &want))
	found := false
	descriptors := fmt.Sprintf("/proc/%d/fd", pid)
	for _, entry := range must.Get(os.ReadDir(descriptors))(t) {
		if unix.Stat(filepath.Join(descriptors, entry.Name()), &got) != nil || got.Ino != want.Ino || got.Dev != want.Dev {
			continue
		}
		found = true
		info := string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, entry.Name())))(t))
		_, rest, _ := strings.Cut(info, "flags:")
		flags := must.Get(strconv.ParseInt(strings.Fields(rest)[0], 8, 64))(t)
		if flags&unix.O_ACCMODE != unix.O_RDONLY {
			t.Errorf("QEMU has %s open with the flags %#o", file, flags)
		}
	}
	maps := string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)))(t))
	for line := range strings.Lines(maps) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == strconv.FormatUint(want.Ino, 10) {
			found = true
			if !strings.HasSuffix(fields[1], "p") {
				t.Errorf("QEMU shares %s: %s", file, line)
			}
		}
	}
	if !found {
		t.Errorf("QEMU has neither opened nor mapped %s", file)
	}
}

// A trace of QEMU from its start to an answer: it makes no socket of the network and opens
// nothing to write to but a null device and what it was given. It opens files and makes
// sockets: the control.
func TestMachine_TracedOpensNothing(t *testing.T) {
	long(t)
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip(err)
	}
	log := filepath.Join(t.TempDir(), "calls")
	cmd := program(t, artifact(t, "bash"), "run", "echo $((6*7))")
	cmd.Args = append([]string{strace, "-f", "--seccomp-bpf", "--decode-pids=comm", "-o", log, "-e", "trace=execve,socket,socketpair,open,openat,openat2,creat", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = strace
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+shared(t))
	if output, err := cmd.CombinedOutput(); err != nil || string(output) != "42\n" {
		t.Fatalf("%v: %s", err, output)
	}
	opened, sockets := 0, 0
	for line := range strings.Lines(string(must.Get(os.ReadFile(log))(t))) {
		thread, call, _ := strings.Cut(strings.TrimSpace(line), " ") // PID<NAME>
		call = strings.TrimSpace(call)
		if strings.HasPrefix(call, "socket") {
			sockets++
		}
		if !strings.Contains(thread, "<qemu-system") {
			continue
		}
		if strings.HasPrefix(call, "socket(AF_INET") || strings.HasPrefix(call, "socket(AF_NETLINK") || strings.HasPrefix(call, "socket(AF_PACKET") || strings.HasPrefix(call, "socket(AF_VSOCK") {
			t.Errorf("QEMU calls %s", call)
		}
		if !strings.HasPrefix(call, "open") && !strings.HasPrefix(call, "creat") {
			continue
		}
		opened++
		writes := strings.Contains(call, "O_WRONLY") || strings.Contains(call, "O_RDWR") || strings.Contains(call, "O_CREAT") || strings.HasPrefix(call, "creat")
		failed := strings.Contains(call, " = -1 ")
		if writes && !failed && !strings.Contains(call, `"/dev/null"`) {
			t.Errorf("QEMU calls %s", call)
		}
	}
	if opened == 0 || sockets == 0 {
		t.Errorf("QEMU has opened %d files, and there were %d sockets", opened, sockets)
	}
	t.Logf("QEMU opened %d files; %d sockets were made in all", opened, sockets)
}

// age changes the description of a saved machine, which is otherwise whole, so that it was
// made so long ago.
func age(t *testing.T, meta string, by time.Duration) {
	t.Helper()
	_, object, _ := strings.Cut(string(must.Get(os.ReadFile(meta))(t)), "\n")
	var fields map[string]any
	decoder := json.NewDecoder(strings.NewReader(object))
	decoder.UseNumber() // sizes
	must.Do(t, decoder.Decode(&fields))
	fields["made"] = time.Now().Add(-by)
	changed := must.Get(json.Marshal(fields))(t)
	must.Do(t, os.Remove(meta))
	must.Write(t, meta, fmt.Sprintf("%x\n%s", sha256.Sum256(changed), changed), 0o400)
}

package backends

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// result runs code and returns the size of its output and how it ended, or the error of
// the stream.
func (m *machine) result(code string) (size int, result frame.Reply, err error) {
	m.t.Helper()
	must.Do(m.t, m.Begin(code))
	for {
		var reply frame.Reply
		if err := m.Replies.Read(&reply); err != nil {
			return size, reply, err
		}
		switch reply.Type {
		case frame.Output:
			size += len(reply.Data)
		case frame.Result:
			return size, reply, nil
		default:
			return size, reply, fmt.Errorf("the agent answers %+v", reply)
		}
	}
}

// pinged runs code that crosses a limit, and pings the agent until the result comes. Silent
// is the longest time between two frames of the agent, in the processor time of the
// machine, which no other load of the host adds to.
func (m *machine) pinged(code string) (result frame.Reply, silent time.Duration, err error) {
	m.t.Helper()
	must.Do(m.t, m.Begin(code))
	must.Do(m.t, m.Ping())
	for before, waits := m.ProcessorTime(), true; ; {
		var reply frame.Reply
		if err := m.Replies.Read(&reply); err != nil {
			return reply, silent, err
		}
		if result.Type == "" {
			now := m.ProcessorTime()
			silent, before = max(silent, now-before), now
		}
		switch reply.Type {
		case frame.Pong:
			waits = false
		case frame.Result:
			result = reply
		}
		switch {
		case waits: // after the result, until the next interpreter has loaded
		case result.Type != "":
			return result, silent, nil
		default:
			waits = true
			must.Do(m.t, m.Ping())
		}
	}
}

// qemuOf returns the process id of QEMU below a process.
func qemuOf(t *testing.T, pid int) (qemu int) {
	t.Helper()
	patience.Wait(t, machineTime, func() string { return "QEMU did not start" }, func() bool {
		for _, pid := range procfs.Descendants(pid) {
			if p, err := procfs.Read(pid); err == nil && strings.HasPrefix(p.Name(), "qemu-system") {
				qemu = pid
			}
		}
		return qemu != 0
	})
	return qemu
}

// sockets has the kernel keep as much as it may for the code, in buffers of sockets.
const sockets = `
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
pairs = []
while True:
    pairs.append(socket.socketpair())
    for end in pairs[-1]:
        end.setblocking(False)
        try:
            while True: end.send(bytes(1 << 16))
        except OSError:
            pass
`

// Code that crosses a limit of its session is the answer to that call, with the limit,
// and the session answers again. What is below the limit runs: the control.
func TestLimits_AreNamedAndTheSessionGoesOn(t *testing.T) {
	for _, test := range []struct {
		kind, below, above, outcome, limit string
		value                              int64
		again                              string
	}{
		{"python", "len(bytearray(200 << 20))", "b = []\nwhile True: b.append(bytearray(1 << 20))", frame.OutcomeMemory, "memory_mb", 256, "print(1)"},
		{"python", "len(bytearray(200 << 20))", sockets, frame.OutcomeMemory, "memory_mb", 256, "print(1)"},
		{"bash", "for i in 1 2 3 4 5; do sleep 0.01 & done; wait", ":(){ :|:& };:; wait; sleep 600", frame.OutcomeLimit, "pids", 64, "echo 1"},
	} {
		t.Run(test.limit, func(t *testing.T) {
			t.Parallel()
			m := start(t, artifact(t, test.kind), shared(t), "")
			if _, r, err := m.result(test.below); err != nil || r.Outcome != frame.OutcomeOK || r.ExitCode != 0 {
				t.Errorf("below the limit: %+v, error %v", r, err)
			}
			r, silent, err := m.pinged(test.above)
			t.Logf("the agent was silent for at most %v of the machine's processor time", silent)
			if silent > 10*time.Second {
				t.Errorf("the agent was silent for %v of the machine's processor time", silent)
			}
			if err != nil || r.Outcome != test.outcome || r.Limit == nil || r.Limit.Name != test.limit || r.Limit.Value != test.value {
				t.Errorf("above the limit: %+v, limit %+v, error %v", r, r.Limit, err)
			}
			if output := m.run(test.again); output != "1\n" {
				t.Errorf("afterwards the session prints %q", output)
			}
		})
	}
}

// Of much output little comes out of a machine, and the launcher keeps none of it.
func TestOutput_OfAMachineIsBounded(t *testing.T) {
	m := start(t, artifact(t, "bash"), shared(t), "")
	size, r, err := m.result("head -c 40M /dev/zero | tr '\\0' x; echo end")
	if err != nil || r.Outcome != frame.OutcomeOK || size > 64<<10 {
		t.Errorf("%d bytes came, the code ends with %+v, error %v", size, r, err)
	}
	if peak := must.Get(procfs.PeakMemory(m.Cmd.Process.Pid))(t); peak > 64<<20 {
		t.Errorf("the launcher has used %d MB", peak>>20)
	}
}

// A machine that prints 1 GB does not keep another one from answering, of which it has as
// little to come as before. How much longer the other one's calls take is logged: it depends
// on the host's processors.
func TestOutput_LeavesOthersAlone(t *testing.T) {
	long(t)
	folder, cache := artifact(t, "bash"), shared(t)
	loud, other := start(t, folder, cache, ""), start(t, folder, cache, "")
	other.run("true")
	calls := func() (middle time.Duration) {
		times := make([]time.Duration, 21)
		for i := range times {
			began := time.Now()
			if output := other.run("echo $((6 * 7))"); output != "42\n" {
				t.Errorf("the other one prints %q", output)
			}
			times[i] = time.Since(began)
		}
		slices.Sort(times)
		return times[len(times)/2]
	}
	alone := calls()
	over := make(chan struct{})
	go func() {
		defer close(over)
		size, r, err := loud.result("head -c 1G /dev/zero; echo end")
		if err != nil || r.Outcome != frame.OutcomeOK || size > 64<<10 {
			t.Errorf("%d bytes came, the code ends with %+v, error %v", size, r, err)
		}
	}()
	beside := calls()
	select {
	case <-over:
		t.Error("1 GB was printed before the other one had answered 21 calls")
	default:
	}
	<-over
	peak := must.Get(procfs.PeakMemory(loud.Cmd.Process.Pid))(t)
	t.Logf("half of the calls take %v alone and %v beside 1 GB of output, %.1f times as long; the launcher has used %d MB", alone, beside, float64(beside)/float64(alone), peak>>20)
	if peak > 64<<20 {
		t.Errorf("the launcher has used %d MB", peak>>20)
	}
}

// panics has the kernel of a machine panic where its memory is used up, which is less than
// code may take.
const panics = "mem=192M sysctl.vm.panic_on_oom=2"

// served is a server that has bash's machine as the environment "machine", whose calls may
// take a second unless they ask for more, and whose kernel panics where its memory is used
// up.
func served(t *testing.T) *mcptest.Client {
	t.Helper()
	folder, sandboxes := artifact(t, "bash"), t.TempDir()
	var metadata map[string]any
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(folder, "metadata.json")))(t), &metadata))
	metadata["name"], metadata["timeout_seconds"], metadata["max_timeout_seconds"] = "machine", 1, 600
	metadata["prewarm"] = 0
	const argument = `"append":"`
	changed := variant(t, folder, argument, argument+panics+" ")
	must.Write(t, filepath.Join(changed, "metadata.json"), string(must.Get(json.Marshal(metadata))(t)), 0o644)
	must.Do(t, os.Symlink(changed, filepath.Join(sandboxes, "machine")))
	home := t.TempDir()
	cmd := exec.Command(undertest.Server(t), "--stdio")
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "XDG_CACHE_HOME=" + shared(t), "NIX_SANDBOX_DIR=" + sandboxes, "NIX_SANDBOX_START_SECONDS=60"}
	c := mcptest.Start(t, cmd)
	c.Initialize(mcptest.Newest)
	return c
}

// called is a call of a session in that environment, which may take as long as it does.
func called(c *mcptest.Client, code string) mcptest.Answer {
	return c.Run(mcptest.Arguments{Code: code, Env: "machine", Session: "s", Timeout: machineTime.Seconds()})
}

// However a machine or its server ends, the next call hears of it, and nothing is left.
func TestServer_OutlivesItsMachines(t *testing.T) {
	t.Parallel()
	c := served(t)
	pid := c.PID()
	t.Run("the kernel panics", func(t *testing.T) {
		answer := called(c, "for i in 1 2 3; do dd if=/dev/zero of=/dev/null bs=80M count=1000 & done; wait")
		if text := answer.Text(); !answer.IsError || !strings.Contains(text, "the virtual machine ended: Kernel panic - not syncing: Out of memory") {
			t.Errorf("the call is answered %q, %+v", text, answer.Meta)
		}
	})
	for _, death := range []struct {
		name   string
		signal syscall.Signal
		victim func(qemu int) int
	}{
		{"QEMU is killed", syscall.SIGKILL, func(qemu int) int { return qemu }},
		{"QEMU is stopped", syscall.SIGSTOP, func(qemu int) int { return qemu }},
		{"the launcher is killed", syscall.SIGKILL, func(qemu int) int { return launcherOf(t, qemu) }},
	} {
		t.Run(death.name, func(t *testing.T) {
			if answer := called(c, "echo $((6 * 7))"); answer.IsError || !strings.HasPrefix(answer.Text(), "42\n") {
				t.Fatalf("a machine answers %+v", answer)
			}
			qemu := qemuOf(t, pid)
			must.Do(t, syscall.Kill(death.victim(qemu), death.signal))
			// A machine that stands still is given up at the time limit of a call.
			answer := c.Run(mcptest.Arguments{Code: "echo again", Env: "machine", Session: "s"})
			if text := answer.Text(); !strings.Contains(text, "[") || strings.HasPrefix(text, "again") && !strings.Contains(text, "[new session: ") {
				t.Errorf("the next call is answered %q", text)
			}
			patience.Gone(t, qemu)
		})
	}
	if answer := called(c, "echo $((6 * 7))"); !strings.HasPrefix(answer.Text(), "42\n") {
		t.Fatalf("a machine answers %+v", answer)
	}
	qemu := qemuOf(t, pid)
	c.Signal(syscall.SIGKILL)
	patience.Gone(t, qemu)
}

// launcherOf is the launcher of a machine.
func launcherOf(t *testing.T, qemu int) int {
	t.Helper()
	for pid := qemu; pid > 1; {
		p := must.Get(procfs.Read(pid))(t)
		if strings.HasPrefix(p.Name(), "nix-sandbox-vm") || strings.Contains(p.Command(), "nix-sandbox-vm") {
			return pid
		}
		pid = p.Parent
	}
	t.Fatal("QEMU has no launcher")
	return 0
}

package cgroup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// This test's own program is what runs in a group.
const role = "CGROUP_TEST_ROLE"

const (
	memoryLimit = 64 << 20
	taskLimit   = 32
	// Code stops by itself here, limited or not.
	mostMemory = 4 * memoryLimit
	mostTasks  = 3 * taskLimit
	// held is what a process takes that then waits.
	held = 48 << 20
)

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "memory":
		memory := make([]byte, mostMemory)
		for at := 0; at < len(memory); at += 4096 {
			memory[at] = 1
		}
	case "hold":
		memory := make([]byte, held)
		for at := 0; at < len(memory); at += 4096 {
			memory[at] = 1
		}
		os.Stdout.WriteString("held\n")
		time.Sleep(patience.Long)
		runtime.KeepAlive(memory)
	case "tasks":
		for range mostTasks {
			pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
			if errno != 0 {
				os.Exit(int(errno))
			}
			if pid == 0 {
				for {
					syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
				}
			}
		}
	case "where":
		text, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			os.Exit(1)
		}
		os.Stdout.Write(text)
	case "wait":
		time.Sleep(patience.Long)
	}
}

// tree returns a Tree for a test, and skips the test where this process cannot
// make control groups.
func tree(t *testing.T) *Tree {
	t.Helper()
	found, err := Find(t.Context(), System)
	if err != nil {
		t.Skipf("the kernel's part cannot be shown here: %v", err)
	}
	return found
}

// start runs this program in a group of nobody, and leaves no group behind.
func start(t *testing.T, limits Limits, what string) (*Group, *exec.Cmd, *bytes.Buffer) {
	t.Helper()
	g := must.Get(tree(t).New(limits, Owner{}))(t)
	cmd, out := startIn(t, g, what)
	return g, cmd, out
}

// startIn runs this program in a group, of which nothing is left in the end.
func startIn(t *testing.T, g *Group, what string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{role + "=" + what}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	g.Apply(cmd.SysProcAttr)
	var out bytes.Buffer
	if what == "where" { // what leaves children behind must hold no pipe open
		cmd.Stdout = &out
	}
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		if _, err := os.Stat(g.folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the group is still there: %v", err)
		}
	})
	return cmd, &out
}

// holder is a process that takes memory and keeps it, in a group of an owner.
type holder struct {
	*Group
	held bool // false where the kernel killed it before
}

// hold starts a holder, and returns when it has its memory or was killed.
func hold(t *testing.T, tree *Tree, owner Owner) holder {
	t.Helper()
	g := must.Get(tree.New(Limits{Memory: memoryLimit}, owner))(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{role + "=hold"}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	g.Apply(cmd.SysProcAttr)
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		must.Do(t, g.Close(context.Background()))
		_ = cmd.Wait()
	})
	word := must.Get(io.ReadAll(io.LimitReader(out, int64(len("held\n")))))(t)
	return holder{g, string(word) == "held\n"}
}

// Together the groups of one owner have its memory, whatever each might have: the kernel
// ends one of them, and no other owner's. With enough memory, both live.
func TestOwner_MemoryIsHeldTogether(t *testing.T) {
	tree := tree(t)
	bob := hold(t, tree, Owner{Name: "bob", Limits: Limits{Memory: 3 * held / 2}})
	for name, test := range map[string]struct {
		memory int64
		killed bool
	}{
		"alice": {3 * held / 2, true},
		"carol": {3 * held, false},
	} {
		// The kernel may end a second one before it has the memory of the first.
		owner, killed := Owner{Name: name, Limits: Limits{Memory: test.memory}}, false
		for _, one := range []holder{hold(t, tree, owner), hold(t, tree, owner)} {
			switch found, err := one.Killed(); {
			case err != nil:
				t.Error(err)
			case found.Processes > 0 && found.ByOwner:
				killed = true
			case found.Processes > 0 || !one.held:
				t.Errorf("%s: %+v, and it has its memory: %v", name, found, one.held)
			}
		}
		if killed != test.killed {
			t.Errorf("%s: a group was killed: %v, want %v", name, killed, test.killed)
		}
	}
	if found, err := bob.Killed(); err != nil || found.Processes > 0 || !bob.held {
		t.Errorf("bob's: %+v, error %v", found, err)
	}
}

// An owner's group is there as long as one of its sandboxes'.
func TestOwner_GroupsComeAndGo(t *testing.T) {
	tree := tree(t)
	alice := Owner{Name: "alice"}
	one, two := must.Get(tree.New(Limits{}, alice))(t), must.Get(tree.New(Limits{}, alice))(t)
	above := filepath.Dir(one.folder)
	if filepath.Dir(two.folder) != above || above == tree.folder {
		t.Errorf("the groups are %s and %s", one.folder, two.folder)
	}
	// Each owner has the same share of the processors, whatever number of sandboxes.
	if weight, err := read(above, "cpu.weight"); tree.cpu && weight != "100" {
		t.Errorf("cpu.weight is %q, error %v", weight, err)
	}
	must.Do(t, one.Close(t.Context()))
	if _, err := os.Stat(above); err != nil {
		t.Errorf("after the first: %v", err)
	}
	must.Do(t, two.Close(t.Context()))
	if _, err := os.Stat(above); !errors.Is(err, os.ErrNotExist) || len(tree.owners) != 0 {
		t.Errorf("after the last: %v, %d owners", err, len(tree.owners))
	}
}

// Processes that were started for nobody move to their owner's group, in which the same
// limits hold them.
func TestGive_MovesProcesses(t *testing.T) {
	g, cmd, _ := start(t, Limits{Tasks: taskLimit}, "wait")
	first := g.folder
	must.Do(t, g.Give(Owner{Name: "alice"}))
	if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its first group is still there: %v", err)
	}
	if pids, err := readFields(g.folder, "cgroup.procs"); err != nil || !slices.Equal(pids, []string{strconv.Itoa(cmd.Process.Pid)}) {
		t.Errorf("processes %q, error %v, want %d", pids, err, cmd.Process.Pid)
	}
	if limit, err := read(g.folder, "pids.max"); err != nil || limit != strconv.Itoa(taskLimit+ownTasks) {
		t.Errorf("pids.max is %q, error %v", limit, err)
	}
	if name := filepath.Base(filepath.Dir(g.folder)); !strings.HasPrefix(name, ownerPrefix) {
		t.Errorf("it is in %s, which is no owner's", name)
	}
}

func TestStartsInside(t *testing.T) {
	g, cmd, out := start(t, Limits{}, "where")
	must.Do(t, cmd.Wait())
	if !bytes.Contains(out.Bytes(), []byte("/"+filepath.Base(g.folder))) {
		t.Errorf("it ran in %s, want in %s", out, g.folder)
	}
}

func TestMemoryIsHeld(t *testing.T) {
	g, cmd, _ := start(t, Limits{Memory: memoryLimit}, "memory")
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v, want SIGKILL", err)
	}
	if killed, err := g.Killed(); err != nil || killed.Processes == 0 || killed.ByOwner {
		t.Errorf("%+v, error %v, want one process at least, for this group's limit", killed, err)
	}
	// memory.peak exists from Linux 5.19 on.
	peak, err := read(g.folder, "memory.peak")
	if used := value("peak "+peak, "peak"); err == nil && used > memoryLimit+ownMemory {
		t.Errorf("it used %d bytes, want at most %d", used, memoryLimit+ownMemory)
	}
}

func TestMemoryControl(t *testing.T) {
	_, cmd, _ := start(t, Limits{Memory: 2 * mostMemory}, "memory")
	if err := cmd.Wait(); err != nil {
		t.Errorf("with room enough: %v", err)
	}
}

func TestTasksAreHeld(t *testing.T) {
	g, cmd, _ := start(t, Limits{Tasks: taskLimit}, "tasks")
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != int(unix.EAGAIN) {
		t.Errorf("exit status %d, want that of EAGAIN, %d", code, int(unix.EAGAIN))
	}
	if events, err := read(g.folder, "pids.events"); err != nil || value(events, "max") == 0 {
		t.Errorf("pids.events %q, error %v, want a refusal", events, err)
	}
}

func TestTasksControl(t *testing.T) {
	_, cmd, _ := start(t, Limits{Tasks: 2 * mostTasks}, "tasks")
	if err := cmd.Wait(); err != nil {
		t.Errorf("with room enough: %v", err)
	}
}

func TestKillEndsAll(t *testing.T) {
	g, cmd, _ := start(t, Limits{}, "wait")
	must.Do(t, killAll(g.folder))
	_ = cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v, want SIGKILL", cmd.ProcessState)
	}
}

func TestSweepRemovesWhatTheDeadLeft(t *testing.T) {
	tree := tree(t)
	dead := exec.Command(os.Args[0])
	dead.Env = []string{role + "=nothing"}
	must.Do(t, dead.Run())
	left := filepath.Join(tree.folder, prefix+strconv.Itoa(dead.Process.Pid)+"-1")
	must.Do(t, os.Mkdir(left, 0o755))
	above := filepath.Join(tree.folder, ownerPrefix+strconv.Itoa(dead.Process.Pid)+"-1")
	must.Do(t, os.MkdirAll(filepath.Join(above, prefix+strconv.Itoa(dead.Process.Pid)+"-2"), 0o755))
	own := must.Get(tree.New(Limits{}, Owner{}))(t)
	defer own.Close(t.Context())
	tree.sweep()
	for _, folder := range []string{left, above} {
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what a dead server left is still there: %v", err)
		}
	}
	if _, err := os.Stat(own.folder); err != nil {
		t.Errorf("a living server's group is gone: %v", err)
	}
}

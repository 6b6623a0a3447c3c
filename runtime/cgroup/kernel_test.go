package cgroup

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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

// start runs this program in a group, and leaves no group behind.
func start(t *testing.T, limits Limits, what string) (*Group, *exec.Cmd, *bytes.Buffer) {
	t.Helper()
	g := must.Get(tree(t).New(limits))(t)
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
	return g, cmd, &out
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
	if killed, err := g.Killed(); err != nil || killed == 0 {
		t.Errorf("%d processes killed, error %v, want one at least", killed, err)
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
	must.Do(t, g.Kill())
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
	own := must.Get(tree.New(Limits{}))(t)
	defer own.Close(t.Context())
	tree.sweep()
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a dead server left is still there: %v", err)
	}
	if _, err := os.Stat(own.folder); err != nil {
		t.Errorf("a living server's group is gone: %v", err)
	}
}

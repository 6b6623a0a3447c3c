package procfs_test

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// orphan starts a shell with a child that is not its descendant any more, and
// returns both pids. Both have the variable MARK.
func orphan(t *testing.T, mark string) (parent, child int) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `echo $(sleep 600 >/dev/null & echo $!); read line`)
	cmd.Env = append(os.Environ(), "MARK="+mark)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if child, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Kill(child, unix.SIGKILL)
		in.Close()
		cmd.Wait()
	})
	return cmd.Process.Pid, child
}

func TestTree_FindsOrphansByTheirVariable(t *testing.T) {
	mark := "tree-" + strconv.Itoa(os.Getpid())
	parent, child := orphan(t, mark)
	if got := procfs.Tree(parent); slices.Contains(got, child) || !slices.Contains(got, parent) {
		t.Errorf("the tree of %d is %v; %d is an orphan", parent, got, child)
	}
	if got := procfs.Tree(append(procfs.WithVariable("MARK", mark), parent)...); !slices.Contains(got, child) {
		t.Errorf("with the mark the tree of %d is %v, without %d", parent, got, child)
	}
	if got := procfs.Descendants(os.Getpid()); !slices.Contains(got, parent) {
		t.Errorf("the descendants are %v, without %d", got, parent)
	}
}

func TestRead_DescribesAProcess(t *testing.T) {
	parent, child := orphan(t, "read")
	p, err := procfs.Read(parent)
	if err != nil || p.Parent != os.Getpid() || p.Group != unix.Getpgrp() || !strings.HasPrefix(p.Command(), "sh -c ") || p.Name() != "sh" {
		t.Errorf("%+v, %q, %q, %v", p, p.Command(), p.Name(), err)
	}
	unix.Kill(child, unix.SIGKILL)
	patience.Gone(t, child)
	if !procfs.Runs(parent) || procfs.Runs(child) {
		t.Errorf("the shell runs: %v, the killed process runs: %v", procfs.Runs(parent), procfs.Runs(child))
	}
}

func TestTimes_CountWork(t *testing.T) {
	patience.Until(t, "this process has used processor time", func() bool {
		for end := time.Now().Add(10 * time.Millisecond); time.Now().Before(end); {
		}
		p, err := procfs.Read(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		own, _ := p.Times()
		return own > 0
	})
}

func TestMemory_AddsUp(t *testing.T) {
	parent, child := orphan(t, "memory")
	one, err := procfs.Memory(parent)
	if err != nil {
		t.Skipf("smaps_rollup cannot be read here: %v", err)
	}
	two, err := procfs.Memory(parent, child)
	if err != nil || one <= 0 || two <= one {
		t.Errorf("one process uses %d bytes, two use %d, %v", one, two, err)
	}
	if own, err := procfs.OwnMemory(parent); err != nil || own <= 0 {
		t.Errorf("its own memory is %d, %v", own, err)
	}
	// A process that has ended uses nothing.
	const nobody = 1 << 22 // the largest pid there can be is one less
	if got, err := procfs.Memory(nobody); err != nil || got != 0 {
		t.Errorf("memory of no process is %d, %v", got, err)
	}
	if peak, err := procfs.PeakMemory(parent); err != nil || peak <= 0 {
		t.Errorf("peak %d, %v", peak, err)
	}
}

// asHeadless has this test's binary end its first thread and keep the others.
const asHeadless = "NIX_SANDBOX_TEST_HEADLESS"

func init() {
	if os.Getenv(asHeadless) == "" {
		return
	}
	// The first thread takes one of Go's processors along, and the rest needs another one.
	runtime.GOMAXPROCS(2)
	begun := make(chan struct{})
	go func() {
		close(begun)
		os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	<-begun
	// Functions of this kind run on the first thread.
	runtime.LockOSThread()
	unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

func TestRuns_AwaitsTheLastThread(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asHeadless+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the first thread ends", func() bool {
		p, err := procfs.Read(cmd.Process.Pid)
		return err == nil && p.State == "Z"
	})
	if !procfs.Runs(cmd.Process.Pid) {
		t.Error("a process whose other threads run has ended")
	}
	in.Close()
	patience.Gone(t, cmd.Process.Pid)
	cmd.Wait()
}

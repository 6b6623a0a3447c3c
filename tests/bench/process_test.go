package main

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// family starts a shell with a child that left it, and returns both pids.
func family(t *testing.T, mark string) (parent, child int) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `(sleep 20 & echo $!) ; read line`)
	cmd.Env = append(os.Environ(), markVariable+"="+mark)
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
		syscall.Kill(child, syscall.SIGKILL)
		in.Close()
		cmd.Wait()
	})
	return cmd.Process.Pid, child
}

func TestTreeFindsThoseWhoLeft(t *testing.T) {
	const mark = "test-tree"
	parent, child := family(t, mark)
	if got := tree(parent, ""); slices.Contains(got, child) || !slices.Contains(got, parent) {
		t.Errorf("without a mark the tree of %d is %v; %d left it", parent, got, child)
	}
	if got := tree(parent, mark); !slices.Contains(got, child) {
		t.Errorf("with the mark the tree of %d is %v, without %d", parent, got, child)
	}
}

func TestMemoryAddsUp(t *testing.T) {
	parent, child := family(t, "test-memory")
	one, err := memory([]int{parent})
	if err != nil {
		t.Skipf("smaps_rollup cannot be read here: %v", err)
	}
	two, err := memory([]int{parent, child})
	if err != nil {
		t.Fatal(err)
	}
	if one <= 0 || two <= one {
		t.Errorf("one process weighs %d bytes, two weigh %d", one, two)
	}
	// A process that ended weighs nothing.
	const nobody = 1 << 22 // the largest pid there can be is one less
	if got, err := memory([]int{nobody}); err != nil || got != 0 {
		t.Errorf("memory of no process is %d, %v", got, err)
	}
}

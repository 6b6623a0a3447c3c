package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// markVariable is set in the environment of every command, with a value of
// its own, so that processes that left their parent (a container's monitor)
// are still found.
const markVariable = "NIX_SANDBOX_BENCH_MARK"

// tree returns the pids of a process and its descendants, and of those that
// carry mark (where it is not empty) and theirs.
func tree(root int, mark string) []int {
	roots := []int{root}
	if mark != "" {
		roots = append(roots, procfs.WithVariable(markVariable, mark)...)
	}
	return procfs.Tree(roots...)
}

// treeCPU is the processor time of a process, its descendants, and all those
// of them that ended and were waited for.
func treeCPU(root int) time.Duration {
	var sum time.Duration
	for _, pid := range tree(root, "") {
		if p, err := procfs.Read(pid); err == nil {
			own, ended := p.Times()
			sum += own + ended
		}
	}
	return sum
}

// A meter is the processor time of a process tree that answers calls.
type meter struct {
	root  int
	first time.Duration
	calls atomic.Int64
}

// begin counts from here on.
func (m *meter) begin(root int) { m.root, m.first = root, treeCPU(root) }

// mean is the processor time of a call.
func (m *meter) mean() time.Duration {
	return (treeCPU(m.root) - m.first) / time.Duration(max(1, m.calls.Load()))
}

// Bounds of [quiet]: how often it measures, how long a tree must rest, and when
// it gives up.
const (
	quietStep  = 4 * time.Millisecond
	quietFor   = 3
	quietLimit = 2 * time.Second
)

// quiet waits until a process tree rests: the same processes with the same
// time on a processor, three times in a row.
func quiet(ctx context.Context, root int) {
	var last string
	same := 0
	for end := time.Now().Add(quietLimit); time.Now().Before(end) && ctx.Err() == nil; {
		var now strings.Builder
		for _, pid := range tree(root, "") {
			tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
			for _, path := range tasks {
				data, _ := os.ReadFile(path)
				ran, _, _ := bytes.Cut(data, []byte(" "))
				fmt.Fprintf(&now, "%s %s\n", path, ran)
			}
		}
		if now.String() == last {
			if same++; same == quietFor {
				return
			}
		} else {
			same = 0
		}
		last = now.String()
		time.Sleep(quietStep)
	}
}

// kill ends a process tree.
func kill(root int, mark string) {
	for _, pid := range tree(root, mark) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

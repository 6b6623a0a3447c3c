package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// markVariable is set in the environment of every command, with a value of
// its own, so that processes that left their parent (a container's monitor)
// are still found.
const markVariable = "NIX_SANDBOX_BENCH_MARK"

// tick is the unit of the times in /proc/PID/stat: USER_HZ is 100 on every
// Linux that Go runs on.
const tick = 10 * time.Millisecond

// tree returns the pids of a process and its descendants, and of those that
// carry mark (where it is not empty) and theirs.
func tree(root int, mark string) []int {
	children := map[int][]int{}
	var found []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		fields, err := stat(pid)
		if err != nil {
			continue // it ended between the two reads
		}
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], pid)
		if pid == root || mark != "" && marked(pid, mark) {
			found = append(found, pid)
		}
	}
	seen := map[int]bool{}
	var all []int
	for len(found) > 0 {
		pid := found[0]
		found = found[1:]
		if seen[pid] {
			continue
		}
		seen[pid] = true
		all = append(all, pid)
		found = append(found, children[pid]...)
	}
	return all
}

func marked(pid int, mark string) bool {
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	return bytes.Contains(environment, []byte(markVariable+"="+mark+"\x00"))
}

// stat returns the fields of /proc/PID/stat that follow the command's name;
// the first is the state.
func stat(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	// The name stands in parentheses and may hold any character.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 15 {
		return nil, fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	return fields, nil
}

// treeCPU is the processor time of a process, its descendants, and all those
// of them that ended and were waited for.
func treeCPU(root int) (time.Duration, error) {
	var ticks int64
	for _, pid := range tree(root, "") {
		fields, err := stat(pid)
		if err != nil {
			continue
		}
		for _, field := range fields[11:15] { // utime, stime, cutime, cstime
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * tick, nil
}

// A meter is the processor time of a process tree that answers calls.
type meter struct {
	root  int
	first time.Duration
	calls atomic.Int64
}

// begin counts from here on.
func (m *meter) begin(root int) (err error) {
	m.root = root
	m.first, err = treeCPU(root)
	return err
}

// mean is the processor time of a call.
func (m *meter) mean() (time.Duration, error) {
	now, err := treeCPU(m.root)
	return (now - m.first) / time.Duration(max(1, m.calls.Load())), err
}

// memory is the sum of the processes' proportional set sizes, in bytes: each
// page counts in equal parts for all that share it.
func memory(pids []int) (int64, error) {
	var sum int64
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it ended
		}
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(data)) {
			if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "Pss:" {
				kib, err := strconv.ParseInt(fields[1], 10, 64)
				if err != nil {
					return 0, fmt.Errorf("/proc/%d/smaps_rollup: %w", pid, err)
				}
				sum += kib << 10
			}
		}
	}
	return sum, nil
}

// Bounds of [quiet]: how often it looks, how long a tree must rest, and when
// it gives up.
const (
	quietStep  = 4 * time.Millisecond
	quietFor   = 3
	quietLimit = 2 * time.Second
)

// quiet waits until a process tree rests: the same processes with the same
// time on a processor, three looks in a row.
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

package mcptest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Descendants returns the processes that come from pid, by their parents.
func Descendants(pid int) []int {
	parents := map[int]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it ended meanwhile
		}
		// The name in parentheses may hold anything; fields follow it.
		_, fields, ok := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), " ")
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		parts := strings.Fields(fields)
		if !ok || err != nil || len(parts) < 2 {
			continue
		}
		parents[child], _ = strconv.Atoi(parts[1])
	}
	var found []int
	for child := range parents {
		for up, ok := parents[child]; ok; up, ok = parents[up] {
			if up == pid {
				found = append(found, child)
				break
			}
		}
	}
	return found
}

// Marked returns the processes whose command line holds mark, wherever they
// come from.
func Marked(mark string) []int {
	var found []int
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		text, err := os.ReadFile(line)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(line)))
		if err == nil && pid != os.Getpid() && strings.Contains(string(text), mark) {
			found = append(found, pid)
		}
	}
	return found
}

// Descriptors returns how many descriptors a process has open.
func Descriptors(t testing.TB, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// PeakMemory returns the most memory that a process has used, in bytes.
func PeakMemory(t testing.TB, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("process %d has no VmHWM", pid)
	return 0
}

// ProportionalMemory returns what processes use together, in bytes, where
// each bears its part of what is shared.
func ProportionalMemory(t testing.TB, pids []int) int64 {
	t.Helper()
	var total int64
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			t.Skipf("memory cannot be measured: %v", err)
		}
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, "Pss:"); ok {
				kb, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				total += kb << 10
			}
		}
	}
	return total
}

// Gone fails the test unless all of the processes have ended within a time.
// A dead one that nobody has waited for has no program any more.
func Gone(t testing.TB, within time.Duration, pids []int) {
	t.Helper()
	var left []int
	Eventually(t, within, func() string { return fmt.Sprintf("processes are left: %v", left) }, func() bool {
		left = left[:0]
		for _, pid := range pids {
			if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
				left = append(left, pid)
			}
		}
		return len(left) == 0
	})
}

// longest is what a wait grows to on a slow machine.
const longest = time.Minute

// Slow returns what a wait takes on this machine: NIX_SANDBOX_TEST_SLOW times
// as long, where that says that instructions are emulated.
func Slow(within time.Duration) time.Duration {
	times, err := strconv.Atoi(os.Getenv("NIX_SANDBOX_TEST_SLOW"))
	if err != nil {
		return within
	}
	return max(within, min(within*time.Duration(times), longest))
}

// Eventually fails the test unless ok becomes true within a time that is
// generous for a busy machine; what says what did not happen.
func Eventually(t testing.TB, within time.Duration, what func() string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Slow(within)); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what())
		}
	}
}

// Package procfs reads from /proc what tests and benchmarks want to know about
// processes.
//
// A process may end between any two reads. Functions that list processes leave
// out those that ended meanwhile; functions about one process return an error.
package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is what /proc/PID/stat says about a process: see proc_pid_stat(5).
type Process struct {
	PID, Parent, Group int
	// State is R, S, D, T, t, Z or another of the kernel's letters. Z is a
	// process that has ended and that its parent has not waited for.
	State string

	fields []string // those after the name; the first is the state
}

// tick is the unit of processor times in /proc: USER_HZ is 100 on every Linux
// that Go runs on.
const tick = 10 * time.Millisecond

// Read returns what the kernel says about one process.
func Read(pid int) (Process, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, err
	}
	// The name stands in parentheses and may hold any character.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return Process{}, fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	p := Process{PID: pid, State: fields[0], fields: fields}
	var parentErr, groupErr error
	p.Parent, parentErr = strconv.Atoi(fields[1])
	p.Group, groupErr = strconv.Atoi(fields[2])
	return p, errors.Join(parentErr, groupErr)
}

// All returns every process that is visible from here, in the order of pids.
func All() []Process {
	var all []Process
	folders, _ := filepath.Glob("/proc/[0-9]*") // fails for a wrong pattern only
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		if p, err := Read(pid); err == nil {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b Process) int { return a.PID - b.PID })
	return all
}

// Descendants returns the children of a process, their children, and so on.
func Descendants(pid int) []int { return Tree(pid)[1:] }

// Tree returns the roots and all of their descendants, each once: the roots
// first.
func Tree(roots ...int) []int {
	children := map[int][]int{}
	for _, p := range All() {
		children[p.Parent] = append(children[p.Parent], p.PID)
	}
	var tree []int
	for next := roots; len(next) > 0; next = next[1:] {
		if !slices.Contains(tree, next[0]) {
			tree = append(tree, next[0])
			next = append(slices.Clone(next), children[next[0]]...)
		}
	}
	return tree
}

// WithCommand returns the processes whose command line contains text. This
// process is never among them.
func WithCommand(text string) []int { return containing("cmdline", text) }

// WithVariable returns the processes that were started with a variable in their
// environment. This process is never among them.
func WithVariable(name, value string) []int { return containing("environ", name+"="+value+"\x00") }

func containing(file, text string) []int {
	var found []int
	for _, p := range All() {
		if p.PID != os.Getpid() && strings.Contains(p.file(file), text) {
			found = append(found, p.PID)
		}
	}
	return found
}

// file returns the contents of one of the process' files, empty where it cannot
// be read.
func (p Process) file(name string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.PID, name))
	return string(text)
}

// Command returns the command line, its words separated by spaces. A process
// that has ended has none.
func (p Process) Command() string {
	return strings.TrimSpace(strings.ReplaceAll(p.file("cmdline"), "\x00", " "))
}

// Name returns the name of the program, at most 15 bytes.
func (p Process) Name() string { return strings.TrimSpace(p.file("comm")) }

// Times returns the processor time that the process used, and that of all its
// children that have ended and were waited for.
func (p Process) Times() (own, ended time.Duration) {
	sum := func(fields []string) (total time.Duration) {
		for _, field := range fields {
			n, _ := strconv.ParseInt(field, 10, 64) // the kernel writes numbers
			total += time.Duration(n) * tick
		}
		return total
	}
	return sum(p.fields[11:13]), sum(p.fields[13:15])
}

// Began returns when the process began, in ticks since the computer started: it tells a
// process from a later one with the same pid.
func (p Process) Began() uint64 {
	ticks, _ := strconv.ParseUint(p.fields[19], 10, 64) // the kernel writes numbers
	return ticks
}

// Runs reports whether a process is there and has not ended. A process of several
// threads has ended with the last of them: until then its descriptors are open, although
// its first thread may be a zombie already.
func Runs(pid int) bool {
	p, err := Read(pid)
	switch {
	case err != nil || p.State == "X":
		return false
	case p.State == "Z":
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		return err == nil && len(threads) > 1
	}
	return true
}

// Descriptors returns how many descriptors a process has open.
func Descriptors(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(entries), err
}

// PeakMemory returns the most memory that a process has had resident, in bytes.
func PeakMemory(pid int) (int64, error) { return kibibytes(pid, "status", "VmHWM:") }

// Memory returns the proportional set sizes of processes, added up, in bytes:
// each page counts in equal parts for all that share it. A process that has
// ended counts nothing.
func Memory(pids ...int) (int64, error) { return added(pids, "Pss:") }

// OwnMemory is [Memory] of the pages alone that nothing else shares.
func OwnMemory(pids ...int) (int64, error) { return added(pids, "Private_Clean:", "Private_Dirty:") }

// added returns sizes of the mappings of processes, added up, in bytes.
func added(pids []int, keys ...string) (sum int64, err error) {
	for _, pid := range pids {
		for _, key := range keys {
			size, err := kibibytes(pid, "smaps_rollup", key)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				break
			}
			if err != nil {
				return 0, err
			}
			sum += size
		}
	}
	return sum, nil
}

// kibibytes returns a size that a file of a process gives in KiB, in bytes.
func kibibytes(pid int, file, key string) (int64, error) {
	name := fmt.Sprintf("/proc/%d/%s", pid, file)
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, key); ok {
			size, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return size << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no line %s", name, key)
}

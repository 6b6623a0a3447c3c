// Package bpf compiles rules about system calls into the classic BPF program that
// seccomp(2) runs before each call.
//
// It promises that the number alone decides about a call without a rule, and about a call
// with a rule that tests no argument. The kernel (5.11 and later) caches such verdicts
// and runs no filter for allowed calls.
package bpf

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rule is the verdict on the system calls with the numbers from First to Last.
type Rule struct {
	First, Last uint32
	Verdict     Verdict
}

// On returns the rule for one system call.
func On(call uint32, checks ...Check) Rule { return Rule{call, call, checks} }

// Verdict decides about a call: the first check that applies decides, and if no check
// applies, the call is allowed.
type Verdict []Check

// Check tests the lower 32 bits of one argument. The kernel reads no more of an
// argument that is a number; a program may put anything above them.
type Check struct {
	Arg    int  // 0 to 5; unused by Always
	Upper  bool // tests the upper 32 bits instead, which pointers and sizes have as well
	Test   Test
	Values []uint32
	Then   uint32  // the filter's return value: SECCOMP_RET_*, with an error number
	Decide Verdict // if not nil, decides in place of Then
}

// Test is how a [Check] tests its argument.
type Test int

// The tests.
const (
	Always  Test = iota // the check always applies
	AnyOf               // the argument is in Values
	NoneOf              // the argument is not in Values
	AnyBit              // the argument has a bit of Values[0]
	EachBit             // the argument has a bit of each of Values
)

// Errno returns the filter's return value that makes a call fail with an error.
func Errno(errno unix.Errno) uint32 {
	return unix.SECCOMP_RET_ERRNO | uint32(errno)
}

// Offsets in struct seccomp_data, the filter's input. On a little-endian architecture the
// lower half of an argument comes first.
const (
	offsetNr   = 0
	offsetArch = 4
	offsetArgs = 16
	sizeArg    = 8
)

// maxInstructions is BPF_MAXINSNS of linux/bpf_common.h, the kernel's limit on a program's
// length.
const maxInstructions = 4096

// Compile returns the program for rules about calls of a little-endian architecture. Unless
// arch is 0, the program ends a process that makes a call of another architecture
// (AUDIT_ARCH_* of linux/audit.h). The rules must not overlap. otherwise decides about calls
// without a rule; nil allows them.
func Compile(arch uint32, rules []Rule, otherwise Verdict) ([]unix.SockFilter, error) {
	rules = slices.SortedFunc(slices.Values(rules), func(a, b Rule) int { return cmp.Compare(a.First, b.First) })
	var segments []Rule
	next := uint64(0)
	for _, r := range rules {
		if uint64(r.First) < next || r.Last < r.First {
			return nil, fmt.Errorf("the rule for the system calls %d to %d overlaps another one", r.First, r.Last)
		}
		if uint64(r.First) > next {
			segments = append(segments, Rule{First: uint32(next), Verdict: otherwise})
		}
		segments = append(segments, r)
		next = uint64(r.Last) + 1
	}
	if next <= 1<<32-1 {
		segments = append(segments, Rule{First: uint32(next), Verdict: otherwise})
	}
	var program []unix.SockFilter
	if arch != 0 {
		program = []unix.SockFilter{
			load(offsetArch),
			{Code: jumpEqual, K: arch, Jt: 1},
			// A program of another architecture would read an error number as
			// an odd result and go on.
			ret(unix.SECCOMP_RET_KILL_PROCESS),
		}
	}
	program = slices.Concat(program, []unix.SockFilter{load(offsetNr)}, tree(segments))
	if len(program) > maxInstructions {
		return nil, fmt.Errorf("the rules take %d instructions, the kernel allows %d", len(program), maxInstructions)
	}
	return program, nil
}

// Install has the kernel run a program for every later call of this thread and of its
// children or, with SECCOMP_FILTER_FLAG_TSYNC in flags, of every thread of this process.
// They cannot gain privileges from then on (no_new_privs), because otherwise the kernel
// accepts programs only from root.
func Install(program []unix.SockFilter, flags uintptr) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	header := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&header)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return fmt.Errorf("install a system call filter: %w", errno)
	}
	return nil
}

const (
	loadWord  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	jumpEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jumpFrom  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	jumpBits  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	jump      = unix.BPF_JMP | unix.BPF_JA
	stop      = unix.BPF_RET | unix.BPF_K
)

func load(offset uint32) unix.SockFilter { return unix.SockFilter{Code: loadWord, K: offset} }
func ret(value uint32) unix.SockFilter   { return unix.SockFilter{Code: stop, K: value} }

// tree returns the instructions of a binary search for the number's segment. A segment ends
// where the next one begins.
func tree(segments []Rule) []unix.SockFilter {
	if len(segments) == 1 {
		return leaf(segments[0].Verdict)
	}
	middle := len(segments) / 2
	below := tree(segments[:middle])
	branch := []unix.SockFilter{{Code: jumpFrom, K: segments[middle].First, Jt: uint8(len(below))}}
	if len(below) > math.MaxUint8 { // too far for a conditional jump
		branch[0].Jt, branch[0].Jf = 0, 1
		branch = append(branch, unix.SockFilter{Code: jump, K: uint32(len(below))})
	}
	return slices.Concat(branch, below, tree(segments[middle:]))
}

func leaf(v Verdict) []unix.SockFilter {
	var out []unix.SockFilter
	for _, c := range v {
		if c.Test == Always {
			return append(out, ret(c.Then))
		}
		offset := uint32(offsetArgs + c.Arg*sizeArg)
		if c.Upper {
			offset += sizeArg / 2
		}
		out = append(out, load(offset))
		then := []unix.SockFilter{ret(c.Then)}
		if c.Decide != nil {
			then = leaf(c.Decide)
		}
		for i, value := range c.Values {
			applies := uint8(len(c.Values) - i - 1) // the distance to then
			not := applies + uint8(len(then))
			test := unix.SockFilter{Code: jumpEqual, K: value, Jt: applies}
			switch {
			case c.Test == NoneOf:
				test.Jt = not
			case c.Test == EachBit:
				test.Jt, test.Jf = 0, not
			case applies == 0:
				test.Jf = not
			}
			if c.Test == AnyBit || c.Test == EachBit {
				test.Code = jumpBits
			}
			out = append(out, test)
		}
		out = append(out, then...)
	}
	return append(out, ret(unix.SECCOMP_RET_ALLOW))
}

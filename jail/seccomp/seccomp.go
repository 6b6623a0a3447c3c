// Package seccomp compiles the reviewed list of system calls that no sandbox
// needs (list.go) into the filter that the kernel runs before each call.
//
// It promises that the filter of an architecture refuses every call of any
// other one (32-bit programs, x32), every call that is newer than the review,
// and those of the list; and that each other call is allowed by its number
// alone, so that the kernel (5.11 and later) remembers that and runs no
// filter for it.
package seccomp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Arch is an architecture that sandboxes run on.
type Arch struct {
	// Name is Nix's and uname's.
	Name  string
	audit uint32
	nr    func(rule) int
}

// Archs are the architectures that a filter can be compiled for.
var Archs = []Arch{
	{Name: "x86_64", audit: unix.AUDIT_ARCH_X86_64, nr: func(r rule) int { return r.x86 }},
	{Name: "aarch64", audit: unix.AUDIT_ARCH_AARCH64, nr: func(r rule) int { return r.arm }},
}

// rule is a line of the list.
type rule struct {
	name     string
	x86, arm int // its numbers, or absent
	verdict  verdict
	reason   string
}

// verdict is what happens to a call: the first check that applies decides,
// and without one the call is allowed.
type verdict []check

// check looks at the lower 32 bits of one argument: those that the kernel
// reads of the arguments in question, whatever a program puts above them.
type check struct {
	arg    int // 0 to 5; unused by whatever
	test   test
	values []uint32
	then   uint32 // what the filter returns
}

type test int

const (
	whatever test = iota // always applies
	anyOf                // the argument is one of values
	noneOf               // the argument is none of values
	anyBit               // the argument has a bit of values[0]
)

// refuse is the filter's answer that fails a call with an error.
func refuse(errno unix.Errno) uint32 {
	return unix.SECCOMP_RET_ERRNO | uint32(errno)
}

const allow = uint32(unix.SECCOMP_RET_ALLOW)

var (
	eperm  = refuse(unix.EPERM)
	enosys = refuse(unix.ENOSYS)
)

func always(then uint32) verdict {
	return verdict{{then: then}}
}

// Offsets in what the filter sees of a call, struct seccomp_data. Both
// architectures are little-endian: an argument's lower half comes first.
const (
	offsetNr   = 0
	offsetArch = 4
	offsetArgs = 16
	sizeArg    = 8
)

// maxFilter is the kernel's limit of a filter's length, in instructions.
const maxFilter = 4096

// Compile returns the filter of an architecture.
func Compile(arch Arch) ([]unix.SockFilter, error) {
	search, err := tree(segments(arch))
	if err != nil {
		return nil, fmt.Errorf("compile the filter for %s: %w", arch.Name, err)
	}
	filter := append([]unix.SockFilter{
		load(offsetArch),
		{Code: jumpEqual, K: arch.audit, Jt: 1},
		// A program of another architecture would read an error number as
		// an odd result and go on; this ends it.
		ret(unix.SECCOMP_RET_KILL_PROCESS),
		load(offsetNr),
	}, search...)
	if len(filter) > maxFilter {
		return nil, fmt.Errorf("compile the filter for %s: %d instructions, the kernel takes %d", arch.Name, len(filter), maxFilter)
	}
	return filter, nil
}

// Encode returns a filter as the kernel and bubblewrap's --seccomp read it.
func Encode(filter []unix.SockFilter) ([]byte, error) {
	var out bytes.Buffer
	if err := binary.Write(&out, binary.LittleEndian, filter); err != nil {
		return nil, fmt.Errorf("encode the filter: %w", err)
	}
	return out.Bytes(), nil
}

// segment is a run of numbers, from first to the next segment's, that share
// a verdict.
type segment struct {
	first   uint32
	verdict verdict
}

// segments returns the verdicts on all numbers from 0 on, in order.
func segments(arch Arch) []segment {
	rules := slices.DeleteFunc(slices.Clone(list), func(r rule) bool { return arch.nr(r) == absent })
	slices.SortFunc(rules, func(a, b rule) int { return cmp.Compare(arch.nr(a), arch.nr(b)) })
	all := []segment{{first: 0}}
	for _, r := range rules {
		nr := uint32(arch.nr(r))
		if all[len(all)-1].first == nr { // the allowed run between two neighbours is empty
			all = all[:len(all)-1]
		}
		all = append(all, segment{nr, r.verdict}, segment{nr + 1, nil})
	}
	if all[len(all)-1].first == newest+1 {
		all = all[:len(all)-1]
	}
	// x32 numbers, which have bit 30 set, are among these.
	return append(all, segment{newest + 1, always(enosys)})
}

const (
	loadWord  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	jumpEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jumpFrom  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	jumpBits  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	stop      = unix.BPF_RET | unix.BPF_K
)

func load(offset uint32) unix.SockFilter { return unix.SockFilter{Code: loadWord, K: offset} }
func ret(value uint32) unix.SockFilter   { return unix.SockFilter{Code: stop, K: value} }

// tree returns the instructions that find the number's segment by halving.
func tree(all []segment) ([]unix.SockFilter, error) {
	if len(all) == 1 {
		return leaf(all[0].verdict), nil
	}
	middle := len(all) / 2
	below, err := tree(all[:middle])
	if err != nil {
		return nil, err
	}
	above, err := tree(all[middle:])
	if err != nil {
		return nil, err
	}
	if len(below) > 255 { // a jump's distance has eight bits
		return nil, fmt.Errorf("a jump over %d instructions, 255 are possible: split the tree in more parts", len(below))
	}
	branch := unix.SockFilter{Code: jumpFrom, K: all[middle].first, Jt: uint8(len(below))}
	return slices.Concat([]unix.SockFilter{branch}, below, above), nil
}

// leaf returns the instructions of a verdict.
func leaf(v verdict) []unix.SockFilter {
	var out []unix.SockFilter
	for _, c := range v {
		if c.test == whatever {
			return append(out, ret(c.then))
		}
		out = append(out, load(uint32(offsetArgs+c.arg*sizeArg)))
		for i, value := range c.values {
			behind := uint8(len(c.values) - i) // the distance over the return
			jump := unix.SockFilter{Code: jumpEqual, K: value, Jt: behind - 1}
			switch {
			case c.test == noneOf:
				jump.Jt = behind
			case behind == 1:
				jump.Jf = behind
			}
			if c.test == anyBit {
				jump.Code = jumpBits
			}
			out = append(out, jump)
		}
		out = append(out, ret(c.then))
	}
	return append(out, ret(unix.SECCOMP_RET_ALLOW))
}

// Package seccomp makes the system call filter of sandboxes from a reviewed list of system
// calls that sandboxes do not need (list.go).
//
// It promises that the filter of an architecture refuses every call of another
// architecture (32-bit programs, x32), every call that is newer than the review, and the
// calls of the list. It allows every other call by its number alone.
package seccomp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/bpf"
)

// Arch is an architecture that sandboxes run on. All of them are little-endian.
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
	x86, arm int // the call's numbers, or absent
	verdict  bpf.Verdict
	reason   string
}

const allow = uint32(unix.SECCOMP_RET_ALLOW)

var (
	eperm  = bpf.Errno(unix.EPERM)
	enosys = bpf.Errno(unix.ENOSYS)
	// done has a call return 0 without doing anything.
	done = bpf.Errno(0)
)

func always(then uint32) bpf.Verdict { return bpf.Verdict{{Then: then}} }

// Compile returns the filter of an architecture.
func Compile(arch Arch) ([]unix.SockFilter, error) {
	// x32 numbers have bit 30 set, so that they are above the newest.
	return compileList(arch, list, []bpf.Rule{{First: newest + 1, Last: math.MaxUint32, Verdict: always(enosys)}}, nil)
}

func compileList(arch Arch, list []rule, rules []bpf.Rule, otherwise bpf.Verdict) ([]unix.SockFilter, error) {
	for _, r := range list {
		if nr := arch.nr(r); nr != absent {
			rules = append(rules, bpf.On(uint32(nr), r.verdict...))
		}
	}
	filter, err := bpf.Compile(arch.audit, rules, otherwise)
	if err != nil {
		return nil, fmt.Errorf("compile the filter for %s: %w", arch.Name, err)
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

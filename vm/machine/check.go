package machine

import (
	"context"
	"fmt"
	"os/user"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
)

// Check returns the requirements of a machine on this computer, in the sentences of a refused
// start, and whether KVM works. To find that out it starts a machine, unless one was started since
// the computer booted.
func (s *Spec) Check(ctx context.Context, memory Memory) []jail.Finding {
	findings := slices.DeleteFunc(s.jail.CheckMachine(ctx), func(f jail.Finding) bool { return !f.Needed })
	f := jail.Finding{Name: "KVM", OK: true, Found: "works: sandboxes are virtual machines with the processor's own isolation"}
	for _, finding := range findings {
		if finding.Needed && !finding.OK {
			return findings
		}
	}
	known, found := memory.Recall()
	if !found {
		m, problem, err := s.tryKVM(Origin{})
		switch {
		case m != nil:
			m.Close()
			known.Works = true
		case err != nil:
			problem = err.Error()
		}
		known.Problem = problem
		_ = memory.Remember(known) // it only costs the next start a try
	}
	if !known.Works {
		f.OK = false
		f.Found = fmt.Sprintf("%s: virtual machines are emulated, code in them is about ten times slower, and a start takes seconds", known.Problem)
		f.Fix = adviceOn(kvmDevice)
	}
	return append(findings, f)
}

// adviceOn says how to make KVM work with this device. KVM is tried again only after the remembered
// result is deleted or the computer has booted again.
func adviceOn(device string) string {
	var stat unix.Stat_t
	switch err := unix.Stat(device, &stat); {
	case err != nil:
		return "switch on virtualization in the firmware, or nested virtualization where this is a virtual machine, and load the kernel module kvm_intel or kvm_amd"
	case unix.Access(device, unix.R_OK|unix.W_OK) != nil:
		group := strconv.Itoa(int(stat.Gid))
		if named, err := user.LookupGroupId(group); err == nil {
			group = named.Name
		}
		return fmt.Sprintf("%s belongs to the group %s: add the server's user to it, log in again, and delete $XDG_CACHE_HOME/nix-sandbox-mcp/vm", device, group)
	}
	return "switch on virtualization in the firmware, or nested virtualization where this is a virtual machine, and start the computer again"
}

package machine

import (
	"context"
	"fmt"
	"slices"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
)

// Check returns what a machine needs of this computer, in the sentences with which its
// start would be refused, and whether KVM works, for which it starts a machine unless
// one did since the computer started.
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
		m, problem, err := s.tryKVM(origin{})
		switch {
		case m != nil:
			m.Close()
			known.Works = true
		case err != nil:
			problem = err.Error()
		}
		known.Problem = problem
		_ = memory.Remember(known) // it costs the next start a try, and nothing else
	}
	if !known.Works {
		f.OK = false
		f.Found = fmt.Sprintf("%s: virtual machines are emulated, and code in them is about ten times slower", known.Problem)
		f.Fix = "let the server open /dev/kvm: add its user to the group kvm, and switch on virtualization in the firmware, or nested virtualization where this is a virtual machine"
	}
	return append(findings, f)
}

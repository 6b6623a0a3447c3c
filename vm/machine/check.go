package machine

import (
	"context"
	"fmt"
	"slices"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
)

// Check returns the requirements of a machine on this computer, in the sentences of a refused
// start, and whether the hardware works. To find that out it starts a machine, unless one was started since
// the computer booted.
func (s *Spec) Check(ctx context.Context, memory Memory) []jail.Finding {
	findings := slices.DeleteFunc(s.jail.CheckMachine(ctx), func(f jail.Finding) bool { return !f.Needed })
	f := jail.Finding{Name: hardwareName, OK: true, Found: "works: sandboxes are virtual machines with the processor's own isolation"}
	for _, finding := range findings {
		if finding.Needed && !finding.OK {
			return findings
		}
	}
	known, found := memory.Recall()
	if !found {
		m, problem, err := s.tryHardware(Origin{})
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
		f.Fix = hardwareAdvice()
	}
	return append(findings, f)
}

package device

import (
	"fmt"
	"os"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
)

// Findings lists the devices of this machine and says whether the sandbox can have its own,
// with the errors that its start would return.
func (f *Finder) Findings(spec *jail.Spec) []jail.Finding {
	registry := f.read()
	names := registry.Names()
	all := jail.Finding{Name: "CDI names", OK: true, Found: "none in " + strings.Join(f.folders, ", ")}
	if len(names) > 0 {
		all.Found = strings.Join(names, ", ")
	}
	if len(registry.Problems) > 0 {
		all.OK = false
		all.Found += "; " + strings.Join(registry.Problems, "; ")
		all.Fix = "fix these files, or write them again with the vendor's generator"
	}
	asked := strings.Join(spec.Devices.Names, ", ")
	had := jail.Finding{Name: "devices " + asked, OK: true, Needed: true}
	plan, err := f.find(registry, spec, jail.Request{})
	var notes []string
	if err == nil {
		// If root starts the sandbox, its user gets the groups of the nodes.
		if os.Geteuid() != 0 {
			notes, err = plan.Usable()
		}
		notes = append(plan.Notes, notes...)
	}
	if err != nil {
		had.OK, had.Found, had.Fix = false, err.Error(), jail.HintOf(err)
		return []jail.Finding{all, had}
	}
	nodes, others := 0, 0
	for _, mount := range plan.Mounts {
		if mount.IsNode {
			nodes++
		} else {
			others++
		}
	}
	had.Found = fmt.Sprintf("device nodes: %d, other files and folders: %d", nodes, others)
	if len(plan.Groups) > 0 {
		var groups []string
		for _, group := range plan.Groups {
			groups = append(groups, groupName(group))
		}
		had.Found += ", for members of " + strings.Join(groups, " and ")
	}
	if len(notes) > 0 {
		had.Found += "; " + strings.Join(notes, "; ")
	}
	return []jail.Finding{all, had}
}

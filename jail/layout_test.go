package jail

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// The launcher knows neither devices, which a launcher of their own adds, nor the programs
// that start it.
func TestLayout(t *testing.T) {
	const module = "github.com/nix-sandbox-mcp/nix-sandbox-mcp/"
	out := must.Get(exec.Command("go", "list", "-deps", module+"jail/...").Output())(t)
	for imported := range strings.Lines(string(out)) {
		path, own := strings.CutPrefix(strings.TrimSpace(imported), module)
		folder, _, _ := strings.Cut(path, "/")
		if own && folder != "jail" && path != "agent/bounded" && path != "network/handover" {
			t.Errorf("a package of jail imports %s", path)
		}
	}
}

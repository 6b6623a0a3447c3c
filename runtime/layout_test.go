// Package runtime_test checks what the packages of the small runtime import.
package runtime_test

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// The runtime knows no part of sessions, no gateway and no command of the operator: these
// import the runtime, and programs put both together.
func TestLayout_TheRuntimeImportsNoPart(t *testing.T) {
	// Go runs a test again that has passed if a folder changes that it read.
	must.Do(t, filepath.WalkDir(".", func(string, fs.DirEntry, error) error { return nil }))
	const module = "github.com/nix-sandbox-mcp/nix-sandbox-mcp/"
	outside := []string{"devices", "gateway", "keep", "operator", "packages", "parts"}
	programs := []string{"runtime/cmd/nix-sandbox-mcp", "runtime/service"}
	list := must.Get(exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, module+"runtime/...").Output())(t)
	for line := range strings.Lines(string(list)) {
		names := strings.Fields(strings.ReplaceAll(line, module, ""))
		for _, imported := range names[1:] {
			folder, _, _ := strings.Cut(imported, "/")
			if slices.Contains(outside, folder) && !slices.Contains(programs, names[0]) {
				t.Errorf("%s imports %s", names[0], imported)
			}
		}
	}
}

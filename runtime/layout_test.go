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

// The packages of the runtime import no part of sessions, no gateway, no command of the operator
// and nothing of devices: these import the runtime, and a program puts them together. The program
// of one client has parts, by its list, and nothing else of these.
func TestLayout_TheRuntimeImportsNoPart(t *testing.T) {
	// Go runs a test again that has passed if a folder changes that it read.
	must.Do(t, filepath.WalkDir(".", func(string, fs.DirEntry, error) error { return nil }))
	const module = "github.com/nix-sandbox-mcp/nix-sandbox-mcp/"
	outside := []string{"devices", "gateway", "operator", "desk", "keep", "packages", "parts", "toolbox"}
	outsideOfProgram := outside[:3]
	list := must.Get(exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, module+"runtime/...").Output())(t)
	for line := range strings.Lines(string(list)) {
		names := strings.Fields(strings.ReplaceAll(line, module, ""))
		forbidden := outside
		if names[0] == "runtime/cmd/nix-sandbox-mcp" {
			forbidden = outsideOfProgram
		}
		for _, imported := range names[1:] {
			folder, _, _ := strings.Cut(imported, "/")
			if slices.Contains(forbidden, folder) {
				t.Errorf("%s imports %s", names[0], imported)
			}
		}
	}
}

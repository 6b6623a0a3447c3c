// Package runtime_test checks which packages the small runtime is made of.
package runtime_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

const module = "github.com/nix-sandbox-mcp/nix-sandbox-mcp/"

// notYet are packages of the runtime that still import parts.
var notYet = []string{"runtime/cmd/", "runtime/service"}

// The runtime, and above all sessions, do not know the parts, the gateway or the operator's
// commands: these import the runtime, and only programs put both together.
func TestLayout_TheRuntimeImportsNoPart(t *testing.T) {
	out := must.Get(exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, module+"runtime/...").Output())(t)
	for line := range strings.Lines(string(out)) {
		name, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		for imported := range strings.FieldsSeq(imports) {
			folder, _, _ := strings.Cut(strings.TrimPrefix(imported, module), "/")
			switch folder {
			case "keep", "packages", "gateway", "operator", "devices":
				if !isNotYet(strings.TrimPrefix(name, module)) {
					t.Errorf("%s imports %s", name, imported)
				}
			}
		}
	}
}

func isNotYet(name string) bool {
	for _, prefix := range notYet {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

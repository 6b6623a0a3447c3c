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

// JSON schemas are validated by the toolbox alone. The library compiles the drafts of the
// specification when its program starts: 7 ms and 22,000 allocations, for every command. It comes
// with mcp-go's server too.
func TestLayout_NoProgramCompilesSchemasToStart(t *testing.T) {
	must.Do(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != ".." {
			return fs.SkipDir
		}
		return err
	}))
	const validator = "github.com/santhosh-tekuri/jsonschema/v6"
	programs := func(arguments ...string) []string {
		list := must.Get(exec.Command("go", append([]string{"list", "-f", `{{if eq .Name "main"}}{{.ImportPath}} {{join .Deps " "}}{{end}}`}, arguments...)...).Output())(t)
		return strings.Split(strings.TrimSpace(string(list)), "\n")
	}
	count := 0
	for _, line := range programs("../...") {
		if fields := strings.Fields(line); !strings.Contains(fields[0], "/tests/") {
			count++
			if slices.Contains(fields[1:], validator) {
				t.Errorf("%s has %s", fields[0], validator)
			}
		}
	}
	if count < 5 {
		t.Errorf("only %d programs were looked at", count)
	}
	// The control: a server with tools does have it.
	if list := programs("-tags", "toolbox", "./cmd/nix-sandbox-mcp"); len(list) != 1 || !slices.Contains(strings.Fields(list[0]), validator) {
		t.Errorf("the server with tools does not have %s, so that this test finds nothing", validator)
	}
}

// Package runtime_test checks what the packages of the programs import.
package runtime_test

import (
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

const module = "github.com/nix-sandbox-mcp/nix-sandbox-mcp/"

// rooms are the folders and packages that the packages of a folder may import, besides its own. A
// folder below another is apart from it.
var rooms = map[string][]string{
	"wire":                        {},
	"builder":                     {"wire"},
	"jail":                        {"wire"},
	"jail/devices":                {"wire", "jail"},
	"agent":                       {"wire", "jail/bpf"},
	"network":                     {"wire"},
	"vm":                          {"wire", "jail"},
	"runtime":                     {"wire"},
	"parts":                       {"wire", "runtime"},
	"gateway":                     {"wire", "runtime", "parts"},
	"operator":                    {"wire", "runtime", "parts", "gateway"},
	"runtime/cmd/nix-sandbox-mcp": {"runtime", "parts"}, // the program takes the list of parts
}

// What the programs' folders import of each other is in a table.
func TestLayout_Rooms(t *testing.T) {
	// Go runs a test again that has passed if a folder changes that it read.
	for room := range rooms {
		must.Do(t, filepath.WalkDir(filepath.Join("..", room), func(string, fs.DirEntry, error) error { return nil }))
	}
	// of returns the innermost of the folders that a package is in.
	of := func(path string, folders []string) (innermost string) {
		for _, folder := range folders {
			if (path == folder || strings.HasPrefix(path, folder+"/")) && len(folder) > len(innermost) {
				innermost = folder
			}
		}
		return innermost
	}
	all := slices.Collect(maps.Keys(rooms))
	count := 0
	list := must.Get(exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "../...").Output())(t)
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		path := strings.TrimPrefix(fields[0], module)
		room := of(path, all)
		for _, imported := range fields[1:] {
			other, own := strings.CutPrefix(imported, module)
			if room == "" || !own || of(other, all) == room {
				continue
			}
			count++
			if allowed := of(other, rooms[room]); allowed == "" || len(allowed) < len(of(other, all)) {
				t.Errorf("%s imports %s", path, other)
			}
		}
	}
	if count < 200 {
		t.Errorf("only %d imports were looked at", count)
	}
}

// JSON schemas are validated by the toolbox alone, which only the programs of servers with tools
// have. The library compiles the drafts of the specification when its program starts: 7 ms and 22,000
// allocations, for every command. It comes with mcp-go's server too.
func TestLayout_NoOtherProgramHasTheToolbox(t *testing.T) {
	must.Do(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != ".." {
			return fs.SkipDir
		}
		return err
	}))
	const validator, gate = "github.com/santhosh-tekuri/jsonschema/v6", module + "parts/toolbox/gate"
	list := must.Get(exec.Command("go", "list", "-f", `{{if eq .Name "main"}}{{.ImportPath}} {{join .Deps " "}}{{end}}`, "../...").Output())(t)
	with, without := 0, 0
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.Contains(fields[0], "/tests/") {
			continue
		}
		has := slices.Contains(fields[1:], validator)
		switch wants := strings.HasPrefix(fields[0], module+"operator/tools/"); {
		case wants != has, wants != slices.Contains(fields[1:], gate):
			t.Errorf("%s has the toolbox or %s: %v", fields[0], validator, has)
		case wants:
			with++
		default:
			without++
		}
	}
	if with != 3 || without < 5 {
		t.Errorf("%d programs with the toolbox and %d without it were looked at", with, without)
	}
}

package guard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// fault is added to this package for the tests of the others. It panics at the place after which the
// program's file is named, each time, and leaves files beside it: one if the place is reached, and one
// with what Go says when a panic ends the process.
const fault = `
func Fault(place string) {
	program, err := os.Executable()
	if err != nil || filepath.Base(program) != strings.ReplaceAll(place, "/", "-") {
		return
	}
	crash, err := os.OpenFile(program+".crash", os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = debug.SetCrashOutput(crash, debug.CrashOptions{})
	}
	if err != nil {
		panic(err)
	}
	time.AfterFunc(3*time.Second, func() { os.Exit(0) }) // tests that wait for this goroutine
	if os.Getenv("NIX_SANDBOX_TEST_UNGUARDED") != "" {
		go panic(place)
	}
	panic(place)
}
`

// elsewhere are the packages whose tests come to places that those of their own package do not come
// to, by the place's file and function.
var elsewhere = map[string]string{
	"runtime/rpc/held.go hold":           "gateway/mcphttp",
	"runtime/service/server.go Go":       "runtime/cmd/nix-sandbox-mcp",
	"runtime/service/service.go Stdio":   "runtime/cmd/nix-sandbox-mcp",
	"runtime/session/session.go release": "parts/keep/suspended",
	"runtime/session/suspend.go suspend": "parts/keep/suspended",
}

// place is where a recovery begins.
type place struct {
	name     string // its file and line
	function string // its file and function
}

// withFaults returns the text of a file with a call of Fault behind each recovery, and their places.
func withFaults(t *testing.T, path, name string) (text []byte, places []place) {
	text = must.Get(os.ReadFile(path))(t)
	files := token.NewFileSet()
	file := must.Get(parser.ParseFile(files, path, text, 0))(t)
	inserts := map[int]string{}
	for _, d := range file.Decls {
		function, is := d.(*ast.FuncDecl)
		if !is {
			continue
		}
		insert := func(at token.Pos, before, after string) {
			here := place{fmt.Sprintf("%s:%d", name, files.Position(at).Line), name + " " + function.Name.Name}
			places = append(places, here)
			inserts[files.Position(at).Offset] = fmt.Sprintf("%sguard.Fault(%q)%s", before, here.name, after)
		}
		ast.Inspect(function, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.DeferStmt:
				if called, is := n.Call.Fun.(*ast.SelectorExpr); is && (called.Sel.Name == "Recover" || called.Sel.Name == "recover") {
					insert(n.End(), "; ", "")
				}
			case *ast.CallExpr:
				called, is := n.Fun.(*ast.SelectorExpr)
				if !is || called.Sel.Name != "Run" || fmt.Sprint(called.X) != "guard" {
					return true
				}
				if run, is := n.Args[0].(*ast.FuncLit); is {
					insert(run.Body.Lbrace+1, "", "; ")
				} else {
					insert(n.Args[0].Pos(), "func() { ", "; ")
					inserts[files.Position(n.Args[0].End()).Offset] = "() }"
				}
			}
			return true
		})
	}
	if !bytes.Contains(text, []byte("/runtime/guard\"")) {
		inserts[files.Position(file.Name.End()).Offset] = `; import "github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"`
	}
	var out []byte
	last := 0
	for _, offset := range slices.Sorted(maps.Keys(inserts)) {
		out = append(append(out, text[last:offset]...), inserts[offset]...)
		last = offset
	}
	return append(out, text[last:]...), places
}

// A panic in any goroutine that has a guard, each time that it runs, ends no server: the process of
// its package's tests lives on. Calls fail, and so may those tests; one that waits for what
// panicked runs out of time.
func TestPanics_EndNoServer(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs the tests of all packages many times")
	}
	dir := t.TempDir()
	replaced := map[string]string{}
	replace := func(path string, text []byte) {
		target := filepath.Join(dir, fmt.Sprintf("%d.go", len(replaced)))
		must.Do(t, os.WriteFile(target, text, 0o600))
		replaced[must.Get(filepath.Abs(path))(t)] = target
	}
	packages := map[string][]place{} // by the folder of the tests that come to them
	for _, folder := range served {
		must.Do(t, filepath.WalkDir(filepath.Join("../..", folder), func(path string, d fs.DirEntry, err error) error {
			if slices.Contains(inSandboxes, strings.TrimPrefix(filepath.ToSlash(path), "../../")) {
				return fs.SkipDir
			}
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "guard.go" {
				return err
			}
			text, places := withFaults(t, path, strings.TrimPrefix(filepath.ToSlash(path), "../../"))
			if places != nil {
				replace(path, text)
			}
			for _, p := range places {
				folder := filepath.Dir(path)
				if other := elsewhere[p.function]; other != "" {
					folder = filepath.Join("../..", other)
				}
				packages[folder] = append(packages[folder], p)
			}
			return nil
		}))
	}
	own := must.Get(os.ReadFile("guard.go"))(t)
	replace("guard.go", append(bytes.Replace(own, []byte("import ("), []byte("import (\n\"os\"\n\"path/filepath\"\n\"strings\"\n\"time\""), 1), fault...))
	overlay := filepath.Join(dir, "overlay.json")
	must.Do(t, os.WriteFile(overlay, must.Get(json.Marshal(map[string]any{"Replace": replaced}))(t), 0o600))
	for _, folder := range slices.Sorted(maps.Keys(packages)) {
		program := filepath.Join(dir, strings.ReplaceAll(folder, "/", "-")+".test")
		build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", program, ".")
		build.Dir = folder
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, p := range packages[folder] {
			named := filepath.Join(dir, strings.ReplaceAll(p.name, "/", "-"))
			must.Do(t, os.Link(program, named))
			run := func(t *testing.T, env ...string) (crash []byte, out string) {
				cmd := exec.Command(named, "-test.timeout=3m")
				cmd.Dir = folder
				cmd.Env = append(os.Environ(), env...)
				text, err := cmd.CombinedOutput()
				crash, e := os.ReadFile(named + ".crash")
				if e != nil {
					t.Errorf("no test in %s comes to %s: %v\n%.3000s", folder, p.name, err, text)
				}
				return crash, fmt.Sprintf("%v\n%.3000s", err, text)
			}
			if p.function == "parts/ask/book.go ask" {
				if crash, out := run(t, "NIX_SANDBOX_TEST_UNGUARDED=1"); !bytes.Contains(crash, []byte("panic: "+p.name)) {
					t.Errorf("a panic without a guard is not seen: %s", out)
				}
				must.Do(t, os.Remove(named+".crash"))
			}
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				if crash, _ := run(t); bytes.Contains(crash, []byte("panic: "+p.name)) {
					t.Errorf("%.3000s", crash)
				}
			})
		}
	}
}

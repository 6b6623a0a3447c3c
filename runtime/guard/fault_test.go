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

// fault is added to this package for the tests of the others. It panics at one place, each time.
const fault = `
func Fault(place string) {
	if place != os.Getenv("NIX_SANDBOX_TEST_FAULT") {
		return
	}
	if f, err := os.Create(os.Getenv("NIX_SANDBOX_TEST_REACHED")); err == nil {
		f.Close()
	}
	time.AfterFunc(3*time.Second, func() { os.Exit(0) }) // tests that wait for this goroutine
	if os.Getenv("NIX_SANDBOX_TEST_UNGUARDED") != "" {
		go panic(place)
	}
	panic(place)
}
`

// unreached are places that only a whole server with a real sandbox comes to, by their file and function.
var unreached = map[string]string{
	"parts/desk/visit/forward.go carry":            "what a forwarded connection reads",
	"parts/desk/visit/forward.go Listen":           "a visitor's connection",
	"parts/desk/visit/verbs.go evaluate":           "code of a visitor",
	"parts/desk/visit/verbs.go shell":              "a shell of a visitor",
	"parts/keep/changes/part.go leave":             "changes that the operator has applied",
	"parts/keep/suspended/part.go End":             "the end of a restored session",
	"runtime/interactive/interactive.go Interrupt": "Ctrl-C in a shell",
	"runtime/rpc/held.go hold":                     "a question to the user",
	"runtime/sandbox/framed/network.go ask":        "a question of the proxy",
	"runtime/sandbox/framed/workspace.go run":      "a message of a failed mount",
	"runtime/service/server.go Go":                 "what runs beside the calls",
	"runtime/service/service.go Stdio":             "the transport as a whole",
	"runtime/session/session.go release":           "the settling of a part, in which a test of rpc panics",
	"runtime/session/suspend.go suspend":           "the suspension of a part, in which a test of rpc panics",
	"parts/toolbox/server/server.go probe":         "a tool server of a network",
	"parts/toolbox/server/stdio.go read":           "what a tool server writes",
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
	packages := map[string][]place{} // by their folder
	for _, folder := range served {
		must.Do(t, filepath.WalkDir(filepath.Join("../..", folder), func(path string, d fs.DirEntry, err error) error {
			if slices.Contains(inSandboxes, strings.TrimPrefix(filepath.ToSlash(path), "../../")) {
				return fs.SkipDir
			}
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "guard.go" {
				return err
			}
			if text, places := withFaults(t, path, strings.TrimPrefix(filepath.ToSlash(path), "../../")); places != nil {
				replace(path, text)
				packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], places...)
			}
			return nil
		}))
	}
	own := must.Get(os.ReadFile("guard.go"))(t)
	replace("guard.go", append(bytes.Replace(own, []byte("import ("), []byte("import (\n\"os\"\n\"time\""), 1), fault...))
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
			reached := filepath.Join(dir, strings.ReplaceAll(p.name, "/", "-"))
			run := func(env ...string) (out []byte, ended int, err error) {
				cmd := exec.Command(program, "-test.timeout=60s")
				cmd.Dir = folder
				cmd.Env = append(append(os.Environ(), "NIX_SANDBOX_TEST_FAULT="+p.name, "NIX_SANDBOX_TEST_REACHED="+reached), env...)
				out, err = cmd.CombinedOutput()
				out = append([]byte("\n"), out...)
				return out, bytes.Index(out, []byte("\npanic: "+p.name)), err
			}
			if p.function == "parts/ask/book.go ask" {
				if out, ended, err := run("NIX_SANDBOX_TEST_UNGUARDED=1"); ended < 0 {
					t.Errorf("a panic without a guard is not seen: %v\n%s", err, out)
				}
			}
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				out, ended, err := run()
				if _, e := os.Stat(reached); e != nil && unreached[p.function] == "" {
					t.Errorf("no test of the package comes to %s: %v", p.function, err)
				} else if e == nil && unreached[p.function] != "" {
					t.Errorf("a test comes to %s", p.function)
				}
				if ended >= 0 {
					t.Errorf("%v\n%.3000s", err, out[ended:])
				}
			})
		}
	}
}

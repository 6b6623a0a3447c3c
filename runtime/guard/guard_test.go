package guard

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestRun_HandsThePanicOn(t *testing.T) {
	if err := Run(func() { panic("a test") }); !errors.Is(err, ErrPanic) {
		t.Errorf("a panic is %v", err)
	}
	if err := Run(func() {}); err != nil {
		t.Errorf("no panic is %v", err)
	}
}

// served are the folders of what is linked into servers. Commands of the operator serve their user
// alone, and the programs of a sandbox end with it.
var served = []string{"runtime", "gateway", "parts"}

// inSandboxes are folders of served that are linked into programs of sandboxes.
var inSandboxes = []string{"parts/toolbox/cmd"}

// trusted are goroutines that handle no foreign bytes, by their file and function.
var trusted = map[string]string{
	"runtime/command/init.go asInit":           "passes signals on, in a process without other work",
	"runtime/sandbox/framed/starter.go spawn":  "awaits the end; what reads the streams has guards of its own (Sandbox.run)",
	"runtime/sandbox/framed/visit.go Open":     "awaits the answer, which Sandbox.read took",
	"runtime/sandbox/framed/workspace.go run":  "awaits the end of a process; what reads its log has a guard",
	"runtime/sandbox/sandbox.go WaitWithin":    "awaits a group",
	"runtime/rpc/held.go drop":                 "awaits a result",
	"runtime/service/server.go untilSignals":   "awaits signals",
	"runtime/session/suspend.go suspendIdle":   "calls the member by Run",
	"runtime/process/process.go NewStarter":    "starts processes from one thread",
	"parts/desk/visit/forward.go carry":        "closes two connections at the end",
	"runtime/session/session.go release":       "calls what it does by Run",
	"runtime/session/suspend.go Suspend":       "calls the member by Run",
	"runtime/sandbox/framed/codecalls.go take": "calls the answer by Run",
	"runtime/sandbox/framed/codecalls.go pass": "calls the write by Run",
	"runtime/sandbox/framed/network.go ask":    "calls the user by Run",
	"runtime/pool/pool.go fill":                "calls the start by Run",
	"runtime/pool/pool.go Add":                 "a timer over own counts",
	"runtime/pool/pool.go widen":               "a timer over own counts",
	"runtime/pool/pool.go fillSoon":            "a timer over own counts",
	"runtime/pool/pool.go failed":              "a timer over own counts",
	"gateway/mcphttp/exchange.go request":      "calls the answer by Run, and awaits it",
	"gateway/mcphttp/listener.go admit":        "closes a connection",
	"gateway/mcphttp/mcphttp.go returnMemory":  "a timer that returns memory",
	"gateway/program/main.go serve":            "accepts connections; net/http recovers in each",
	"gateway/program/observe.go start":         "is run by Server.Go, which has a guard",
	"parts/ask/book.go ask":                    "calls the way by Run",
	"parts/parts.go Add":                       "is run by Server.Go, which has a guard",
	"parts/toolbox/toolbox.go Add":             "is run by Server.Go, which has a guard",
	"runtime/service/server.go AfterAnswer":    "is run by Server.Go, which has a guard",
	"runtime/service/server.go rebuild":        "is run by Server.Go, which has a guard",
}

// Each goroutine of a server recovers from a panic by this package, or is trusted for a reason.
func TestGoroutines_HaveAGuard(t *testing.T) {
	unused := maps.Clone(trusted)
	count := 0
	for _, folder := range served {
		must.Do(t, filepath.WalkDir(filepath.Join("../..", folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			if slices.Contains(inSandboxes, strings.TrimPrefix(filepath.ToSlash(path), "../../")) {
				return fs.SkipDir
			}
			files := map[string]*ast.File{}
			for _, file := range must.Get(filepath.Glob(filepath.Join(path, "*.go")))(t) {
				if !strings.HasSuffix(file, "_test.go") {
					files[file] = must.Get(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
				}
			}
			for file, unguarded := range goroutines(files, &count) {
				for _, function := range unguarded {
					name := strings.TrimPrefix(filepath.ToSlash(file), "../../") + " " + function
					if delete(unused, name); trusted[name] == "" {
						t.Errorf("%s starts a goroutine without a guard", name)
					}
				}
			}
			return nil
		}))
	}
	for name := range unused {
		t.Errorf("%s is trusted and starts no goroutine without a guard", name)
	}
	if count < 50 {
		t.Errorf("only %d goroutines were found", count)
	}
}

// goroutines returns the functions of a package that start a goroutine without a guard, by file.
func goroutines(files map[string]*ast.File, count *int) map[string][]string {
	bodies := map[string][]*ast.BlockStmt{} // of all types
	for _, file := range files {
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is && f.Body != nil {
				bodies[f.Name.Name] = append(bodies[f.Name.Name], f.Body)
			}
		}
	}
	found := map[string][]string{}
	for path, file := range files {
		for _, d := range file.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is || f.Body == nil {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				var run ast.Expr
				switch n := n.(type) {
				case *ast.GoStmt:
					run = n.Call.Fun
				case *ast.CallExpr:
					if s, is := n.Fun.(*ast.SelectorExpr); is && len(n.Args) > 0 && (s.Sel.Name == "Go" || s.Sel.Name == "AfterFunc") {
						run = n.Args[len(n.Args)-1]
					}
				}
				if run == nil {
					return true
				}
				var body []*ast.BlockStmt
				switch run := run.(type) {
				case *ast.FuncLit:
					body = []*ast.BlockStmt{run.Body}
				case *ast.SelectorExpr:
					body = bodies[run.Sel.Name]
				case *ast.Ident:
					body = bodies[run.Name]
				}
				// A single call in a timer, such as one that closes a connection, reads nothing.
				_, isGo := n.(*ast.GoStmt)
				if *count++; !guarded(body) && (isGo || body != nil && !isOneCall(body[0], bodies)) && !slices.Contains(found[path], f.Name.Name) {
					found[path] = append(found[path], f.Name.Name)
				}
				return true
			})
		}
	}
	return found
}

// guarded reports whether a function, or one of those with its name, defers a recovery.
func guarded(bodies []*ast.BlockStmt) bool {
	var all []ast.Stmt
	for _, body := range bodies {
		all = append(all, body.List...)
	}
	return slices.ContainsFunc(all, func(s ast.Stmt) bool {
		d, is := s.(*ast.DeferStmt)
		if !is {
			return false
		}
		name, is := d.Call.Fun.(*ast.SelectorExpr)
		return is && (name.Sel.Name == "Recover" || name.Sel.Name == "recover")
	})
}

// isOneCall reports whether a function is one call, and what it calls in this package has a guard.
func isOneCall(body *ast.BlockStmt, bodies map[string][]*ast.BlockStmt) bool {
	if len(body.List) != 1 {
		return false
	}
	var call *ast.CallExpr
	switch s := body.List[0].(type) {
	case *ast.ExprStmt:
		call, _ = s.X.(*ast.CallExpr)
	case *ast.AssignStmt:
		call, _ = s.Rhs[0].(*ast.CallExpr)
	}
	if call == nil {
		return false
	}
	name, is := call.Fun.(*ast.SelectorExpr)
	if !is {
		return false
	}
	own := bodies[name.Sel.Name]
	return own == nil || guarded(own) || strings.HasPrefix(name.Sel.Name, "Close") || strings.HasPrefix(name.Sel.Name, "end") || name.Sel.Name == "drop"
}

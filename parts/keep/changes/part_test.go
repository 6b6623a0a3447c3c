package changes_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// layered is a sandbox whose upper layer is a folder.
type layered struct {
	sandbox.Sandbox
	upper string
}

func (l layered) Upper() *os.File {
	file, err := os.Open(l.upper)
	if err != nil {
		return nil
	}
	return file
}

func (l layered) Refresh() {}

// writer is a member whose code writes a file.
type writer struct {
	session.Member
	box layered
}

func (w writer) Sandbox() sandbox.Sandbox { return w.box }

func (w writer) Call(_ context.Context, c call.Call, _ sandbox.Request) (call.Result, error) {
	return call.Result{}, os.WriteFile(filepath.Join(w.box.upper, "new.py"), []byte(c.Code), 0o644)
}

func (w writer) Settle(bool) []func() { return nil }

func (w writer) Beside() (done func(context.Context) []string) {
	return func(context.Context) []string { return nil }
}

func (w writer) End(call.Cause) {}

// The patch of a session is there while it lives and after its end, and its store is let go then.
func TestPart_KeepsThePatchOfASession(t *testing.T) {
	dir := t.TempDir()
	box := layered{upper: filepath.Join(dir, "upper")}
	project := sandbox.Project{Dir: filepath.Join(dir, "project"), Mount: "/project"}
	must.Do(t, os.Mkdir(box.upper, 0o755))
	must.Do(t, os.Mkdir(project.Dir, 0o755))
	store := must.Get(changes.Open(filepath.Join(dir, "changes"), slog.New(slog.NewTextHandler(t.Output(), nil))))(t)
	part := changes.NewPart(store, project)
	c := call.Call{Session: "s", Env: registry.Environment{Name: "python"}, Code: "print(1)\n"}
	start := func() session.Member {
		return must.Get(part.Start(t.Context(), &session.Start{Call: c}, func(context.Context, *session.Start) (session.Member, error) {
			return writer{box: box}, nil
		}))(t)
	}
	member := start()
	result := must.Get(member.Call(t.Context(), c, sandbox.Request{}))(t)
	if note := call.Find[call.Changes](result.Notes); note == nil || note.Added != 1 {
		t.Errorf("the answer says %+v", note)
	}
	for _, do := range member.Settle(false) {
		do()
	}
	key := call.Key{ID: "s"}
	during := must.Get(part.Read(key, 1<<20))(t)
	done := member.Beside()
	must.Do(t, os.WriteFile(filepath.Join(box.upper, "beside.py"), []byte("print(2)\n"), 0o644))
	done(t.Context())
	beside := must.Get(part.Read(key, 1<<20))(t)
	member.End(call.Idle)
	after := must.Get(part.Read(key, 1<<20))(t)
	if !strings.Contains(string(during), "+print(1)\n") || !strings.Contains(string(beside), "+print(2)\n") || string(after) != string(beside) {
		t.Errorf("%s, %s, and then %s", during, beside, after)
	}
	start().End(call.Idle) // a later session of this name
}

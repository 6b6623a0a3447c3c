package sessionfiles_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/sessionfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/packages"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

// server is a Manager that keeps files in a folder.
type server struct {
	*session.Manager
	t       *testing.T
	machine *sandboxtest.Machine
}

func newServer(t *testing.T, folder string) *server { return serve(t, folder, false) }

func workspaces(machine *sandboxtest.Machine, shared bool) sandbox.Workspaces {
	if shared {
		return machine
	}
	return nil
}

func serve(t *testing.T, folder string, shared bool) *server {
	log := slog.New(slog.DiscardHandler)
	machine := &sandboxtest.Machine{}
	files := must.Get(sessionfiles.Open(store.Options{Folder: folder, Limit: 1 << 20, Log: log}))(t)
	s := &server{session.New(session.Options{
		Starter: machine, Spec: func(c call.Call) sandbox.Spec { return sandbox.Spec{Name: c.Env.Name, OutputBytes: 1000} },
		Limits: session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: 8},
		Parts:  []session.Part{sessionfiles.NewPart(files, log), packages.Grow{}}, Log: log,
		Workspaces: workspaces(machine, shared),
	}), t, machine}
	t.Cleanup(s.Close)
	return s
}

// in runs code in session s of an environment with packages.
func (s *server) in(code string, adds ...string) (call.Result, error) {
	env := registry.Environment{Name: "bash", Timeout: time.Minute, OutputBytes: 1000}
	if len(adds) > 0 {
		env.Base, env.Added = "bash", adds
		env.Name = packages.Name{Base: "bash", Packages: adds}.String()
	}
	return s.Answer(s.t.Context(), call.Call{Session: "s", Env: env, Code: code})
}

// want fails the test unless a call in session s writes text.
func (s *server) want(text, code string, adds ...string) call.Result {
	s.t.Helper()
	result, err := s.in(code, adds...)
	if err != nil || result.Stdout.Head != text {
		s.t.Errorf("%s: %q, error %v, want %q", code, result.Stdout.Head, err, text)
	}
	return result
}

func TestPart_ALaterSessionHasTheFiles(t *testing.T) {
	folder := t.TempDir()
	first := newServer(t, folder)
	first.want("", "x=1; echo text >f")
	// A session of another server goes on without them until it has ended.
	second := newServer(t, folder)
	beside := newServer(t, folder)
	result := beside.want("none\n", "cat f; echo none; echo other >f")
	if restored := call.Find[call.Restored](result.Notes); restored == nil || !strings.HasPrefix(restored.UsedBy, fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("beside another server: %+v", result.Notes)
	}
	if result := beside.want("other\n", "cat f", "jq"); call.Find[call.Restored](result.Notes) != nil {
		t.Errorf("the larger sandbox beside another server has the notes %+v", result.Notes)
	}
	// The larger sandbox has the files of the same session.
	first.want("text\n", "cat f; echo more >g", "jq")
	if result, err := first.in("crash", "jq"); err == nil || call.Find[call.Survived](result.Notes) == nil {
		t.Errorf("where the sandbox dies: %+v, %v", result.Notes, err)
	}
	first.Close()
	beside.want("other\n", "cat f", "jq")
	beside.Close()
	result = second.want("text\nmore\nnone\n", "cat f; cat g; echo none$x")
	if restored := call.Find[call.Restored](result.Notes); restored == nil || restored.Files != 2 || restored.Lost != "" {
		t.Errorf("notes %+v", result.Notes)
	}
	if result := second.want("text\n", "cat f"); len(result.Notes) > 0 {
		t.Errorf("the next call has the notes %+v", result.Notes)
	}
}

// Damaged files cost the files and not the session.
func TestPart_SetsDamagedFilesAside(t *testing.T) {
	folder := t.TempDir()
	first := newServer(t, folder)
	first.want("", "echo text >f")
	first.Close()
	heads := must.Get(filepath.Glob(filepath.Join(folder, "*", "head")))(t)
	if len(heads) != 1 {
		t.Fatalf("heads %q", heads)
	}
	must.Do(t, os.WriteFile(heads[0], []byte("{"), 0o600))
	second := newServer(t, folder)
	result := second.want("none\n", "cat f; echo none; echo new >f")
	if restored := call.Find[call.Restored](result.Notes); restored == nil || restored.Lost == "" {
		t.Errorf("notes %+v", result.Notes)
	}
	if live, _ := second.machine.Live(); len(live) != 1 {
		t.Errorf("%d sandboxes live", len(live))
	}
	second.Close()
	third := newServer(t, folder)
	third.want("new\n", "cat f")
}

// Files that environments share are restored when the first of them begins, and kept
// whichever of them changed them.
func TestPart_KeepsSharedFiles(t *testing.T) {
	folder := t.TempDir()
	in := func(s *server, env, code, want string) call.Result {
		t.Helper()
		result, err := s.Answer(t.Context(), call.Call{Session: "s", Env: registry.Environment{Name: env, Timeout: time.Minute, OutputBytes: 1000}, Code: code})
		if err != nil || result.Stdout.Head != want {
			t.Errorf("%s: %s: %q, error %v, want %q", env, code, result.Stdout.Head, err, want)
		}
		return result
	}
	first := serve(t, folder, true)
	in(first, "one", "echo first >a", "")
	in(first, "two", "cat a; echo second >b", "first\n")
	if result, err := first.Answer(t.Context(), call.Call{Session: "s", Env: registry.Environment{Name: "one", Timeout: time.Minute, OutputBytes: 1000}, Code: "crash"}); err == nil {
		t.Error("it did not crash")
	} else if survived := call.Find[call.Survived](result.Notes); survived == nil || survived.Earlier {
		t.Errorf("where one of two sandboxes dies: %+v", result.Notes)
	}
	in(first, "one", "cat b; echo third >c", "second\n")
	first.Close()
	second := serve(t, folder, true)
	result := in(second, "two", "cat a; cat b; cat c; echo changed >a", "first\nsecond\nthird\n")
	if restored := call.Find[call.Restored](result.Notes); restored == nil || restored.Files != 3 {
		t.Errorf("notes %+v", result.Notes)
	}
	// The next environment has the files as they are now.
	if result := in(second, "one", "cat a", "changed\n"); call.Find[call.Restored](result.Notes) != nil {
		t.Errorf("notes %+v", result.Notes)
	}
	second.Close()
	in(serve(t, folder, true), "three", "cat a", "changed\n")
}

// The next session is told that files were removed to make room for those of others.
func TestPart_TellsOfRemovedFiles(t *testing.T) {
	folder := t.TempDir()
	first := newServer(t, folder)
	first.want("", "echo text >f")
	first.Close()
	head := must.Get(store.List(folder))(t)[0]
	other := must.Get(store.New(store.Options{Folder: folder, Limit: head.Disk + 1, Log: slog.New(slog.DiscardHandler)}).Acquire(store.Key{Session: "other"}))(t)
	must.Write(t, other.Next(), "data", 0o600)
	must.Do(t, other.Commit(store.Head{Bytes: head.Disk}))
	other.Close()
	second := newServer(t, folder)
	if result := second.want("none\n", "cat f; echo none"); call.Find[call.Restored](result.Notes) == nil || !call.Find[call.Restored](result.Notes).Removed {
		t.Errorf("notes %+v", result.Notes)
	}
}

package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

func ran(s *Server, c call.Call, result call.Result, err error) { s.Begin(c)(result, err) }

func result(stdout string, files ...sandbox.File) call.Result {
	return call.Result{Result: sandbox.Result{Outcome: "ok", Stdout: sandbox.Text{Head: stdout}, Files: files}}
}

// A call whose code failed is none that went well.
func TestCalls_OfCodeThatFails(t *testing.T) {
	s := New(registry.New(&registry.Set{}))
	wrong := result("")
	wrong.ExitCode = 1
	ran(s, call.Call{Principal: "alice"}, wrong, nil)
	ran(s, call.Call{Principal: "alice"}, result(""), nil)
	snapshot := s.Now()
	if got := snapshot.Recent; len(got) != 2 || !slices.Contains([]string{got[0].Outcome, got[1].Outcome}, call.OutcomeFailed) || !slices.Contains([]string{got[0].Outcome, got[1].Outcome}, "ok") {
		t.Errorf("outcomes %+v", got)
	}
	if p := snapshot.Principals; len(p) != 1 || p[0].Failed != 1 || p[0].Calls != 2 {
		t.Errorf("principals %+v", p)
	}
}

// What is kept is bounded, whatever comes.
func TestServer_IsBounded(t *testing.T) {
	s := New(registry.New(&registry.Set{}))
	big := strings.Repeat("x", 1<<20)
	image := sandbox.File{Path: "/a.png", Type: "image/png", Content: make([]byte, maxImage)}
	for i := range 3 * maxPrincipals {
		c := call.Call{Principal: fmt.Sprint(i), Env: registry.Environment{Name: big}, Session: big, Code: big}
		r := result(big, image, image, image, image, image)
		r.Stderr = sandbox.Text{Head: big, Tail: big, Cut: 1}
		ran(s, c, r, errors.New(big))
		s.Begin(c)
	}
	size := len(must.Get(json.Marshal(s.Now()))(t))
	if len(s.recent) > maxRecent || s.images > maxImages || len(s.principals) > maxPrincipals+1 || size > 2<<20 {
		t.Errorf("%d calls, %d bytes of images, %d principals, a snapshot of %d bytes", len(s.recent), s.images, len(s.principals), size)
	}
	total := 0
	for _, c := range s.recent {
		for _, text := range []Text{c.Code, c.Stdout, c.Stderr} {
			total += len(text.Head) + len(text.Tail)
		}
		total += len(c.Reason) + len(c.Env)
	}
	if total > maxRecent*4*maxText {
		t.Errorf("%d bytes of text", total)
	}
	if n := len(s.Now().Running); n != maxRunning {
		t.Errorf("%d calls that run are shown", n)
	}
	// A viewer that does not read delays nobody, and finds what is kept.
	viewer, stop := s.Follow()
	before := s.ended
	for range 3 {
		ran(s, call.Call{}, result("x"), nil)
	}
	if ended, _ := s.EndedSince(before); len(viewer) != 1 || len(ended) != 3 {
		t.Errorf("%d calls for a viewer", len(ended))
	}
	if ended, all := s.EndedSince(0); len(ended) != len(s.recent) || all != s.ended {
		t.Errorf("%d calls of %d", len(ended), all)
	}
	stop()
	if n := len(s.Cards()); n != maxCards {
		t.Errorf("%d calls that run have cards", n)
	}
}

func TestSnapshot_AddsUpPrincipals(t *testing.T) {
	s := New(registry.New(&registry.Set{}))
	s.SetSessions(func() []session.Live {
		return []session.Live{
			{Key: call.Key{Principal: "alice", ID: "a"}, Environments: "bash", MemoryMB: 512, Started: time.Now(), Used: time.Now()},
			{Key: call.Key{Principal: "bob", ID: "b"}, Environments: "bash", MemoryMB: 256},
		}
	})
	ran(s, call.Call{Principal: "alice"}, result(""), nil)
	ran(s, call.Call{Principal: "alice"}, call.Result{}, errors.New("no"))
	ran(s, call.Call{Principal: "alice"}, call.Result{}, context.Canceled)
	end := s.Begin(call.Call{Principal: "bob"})
	now := s.Now()
	if len(now.Principals) != 2 || len(now.Sessions) != 2 || len(now.Running) != 1 || len(now.Recent) != 3 {
		t.Fatalf("%+v", now)
	}
	if p := now.Principals[0]; p.Name != "bob" || p.Running != 1 || p.Sessions != 1 || p.MemoryMB != 256 {
		t.Errorf("bob: %+v", p)
	}
	if p := now.Principals[1]; p.Calls != 3 || p.Refused != 1 || p.Failed != 1 || p.MemoryMB != 512 {
		t.Errorf("alice: %+v", p)
	}
	end(result(""), nil)
	patience.Wait(t, patience.Long, func() string { return "memory is not read" }, func() bool { return s.Now().Memory.Server > 0 })
}

func BenchmarkCall(b *testing.B) {
	s := New(registry.New(&registry.Set{}))
	c := call.Call{Principal: "alice", Env: registry.Environment{Name: "python"}}
	b.ReportAllocs()
	for b.Loop() {
		s.Begin(c)(call.Result{}, nil)
	}
}

package watch

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// A client is told of calls and of the state until it goes, and asks for images.
func TestVerbs_TellOfCalls(t *testing.T) {
	s := New(registry.New(&registry.Set{}))
	ran(s, call.Call{Code: "first"}, result("1", sandbox.File{Path: "/a.png", Type: "image/png", Content: []byte("png")}), nil)
	folder := filepath.Join(t.TempDir(), "desk")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		desk.Serve(ctx, []string{folder}, nil, s.Verbs(), slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	var found []desk.Server
	patience.Until(t, "the server is found", func() bool {
		found = desk.Find([]string{folder})
		return len(found) == 1
	})
	client := must.Get(found[0].Dial(t.Context(), VerbName, nil))(t)
	var e Event
	if must.Do(t, client.Read(&e)); e.Call == nil || e.Call.Code.Head != "first" {
		t.Errorf("first: %+v", e)
	}
	e = Event{}
	if must.Do(t, client.Read(&e)); e.State == nil || e.State.Recent != nil || len(e.State.Principals) != 1 {
		t.Errorf("then: %+v", e)
	}
	viewers := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.viewers)
	}
	if n := viewers(); n != 1 {
		t.Errorf("%d viewers", n)
	}
	must.Do(t, client.Close())
	patience.Until(t, "the viewer has gone", func() bool { return viewers() == 0 })
	var image Image
	must.Do(t, found[0].Ask(t.Context(), ImageVerbName, ImageArgs{Call: 1}, &image))
	if image.Type != "image/png" || string(image.Content) != "png" {
		t.Errorf("the image is %+v", image)
	}
	for _, args := range []ImageArgs{{Call: 2}, {Call: 1, File: 1}, {Call: 1, File: -1}} {
		if err := found[0].Ask(t.Context(), ImageVerbName, args, &image); err == nil {
			t.Errorf("%+v has an image", args)
		}
	}
}

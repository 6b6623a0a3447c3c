package ask

import (
	"context"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// A command at the desk of a server answers, and only what it follows.
func TestVerb_AnswersQuestions(t *testing.T) {
	b := quiet()
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(patience.Long))
	defer cancel()
	folder := t.TempDir() + "/desk"
	served := make(chan struct{})
	go func() {
		defer close(served)
		desk.Serve(ctx, []string{folder}, nil, []desk.Verb{Verb(b)}, b.log)
	}()
	var servers []desk.Server
	for len(servers) == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
		servers = desk.Find([]string{folder})
	}
	lists, replies := make(chan []call.Question, 16), make(chan Reply)
	followed, leave := context.WithCancel(ctx)
	gone := make(chan error, 1)
	go func() {
		gone <- Follow(followed, servers[0], Whose{Principal: "a"}, func(list []call.Question) { lists <- list }, replies)
	}()
	if first := <-lists; len(first) != 0 {
		t.Errorf("at first %v", first)
	}
	if got := decide(ctx, b, python("b", "", nil), someTool); got != call.Nobody {
		t.Errorf("another principal: %q", got)
	}
	got := make(chan call.Choice, 1)
	go func() { got <- decide(ctx, b, python("a", "s", nil), someTool) }()
	asked := <-lists
	if len(asked) != 1 || asked[0].Text == "" || len(asked[0].Choices) != 4 {
		t.Fatalf("asked %+v", asked)
	}
	replies <- Reply{"another", call.Once}
	replies <- Reply{asked[0].ID, "everything"}
	replies <- Reply{asked[0].ID, call.ForSession}
	if choice := <-got; choice != call.ForSession {
		t.Errorf("choice %q", choice)
	}
	if after := <-lists; len(after) != 0 {
		t.Errorf("afterwards %v", after)
	}
	// When it leaves, questions are refused at once again.
	go func() { got <- decide(ctx, b, python("a", "t", nil), someTool) }()
	<-lists
	leave()
	if choice := <-got; choice != call.Nobody {
		t.Errorf("after it left: %q", choice)
	}
	if err := <-gone; err != nil {
		t.Error(err)
	}
	cancel()
	<-served
}

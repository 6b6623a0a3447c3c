package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/ask"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

// findEvery is how often servers are looked for that have started meanwhile, and patches that have
// changed.
const findEvery = time.Second

// event is what the page is told. Its kind is call, state or questions of a server; gone, if the server
// has ended; servers, with how many run; or patches.
type event struct {
	kind   string
	server int
	is     any
}

// events sends what happens in each server, and which patches there are.
func (s *site) events(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	_ = out.SetReadDeadline(time.Time{}) // that of the server is for the request
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	send := func(e event) bool {
		// JSON has no line breaks, so that no text can end the event.
		text, err := json.Marshal(map[string]any{"server": e.server, "is": e.is})
		if err != nil {
			return true // of a server of another version
		}
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.kind, text)
		return err == nil && out.Flush() == nil
	}
	events := make(chan event)
	followed := map[int]bool{}
	ticker := time.NewTicker(findEvery)
	defer ticker.Stop()
	var stamp string // of the patches that the page has
	for {
		running := s.find()
		for number, server := range running {
			if !followed[number] {
				followed[number] = true
				go follow(ctx, number, server, events)
			}
		}
		if !send(event{kind: "servers", is: len(running)}) {
			return
		}
		if now := s.stamp(); now != stamp {
			stamp = now
			if !send(event{kind: "patches", is: s.patches()}) {
				return
			}
		}
		for isTime := false; !isTime; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				isTime = true
			case e := <-events:
				if e.kind == "gone" {
					delete(followed, e.server)
				}
				if !send(e) {
					return
				}
			}
		}
	}
}

// follow tells of a server until it or the page ends.
func follow(page context.Context, number int, server desk.Server, events chan<- event) {
	ctx, cancel := context.WithCancel(page)
	tell := func(kind string, is any) {
		select {
		case events <- event{kind, number, is}:
		case <-ctx.Done():
		}
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		defer cancel() // the server has gone
		// A server of another version, or that ends, has no questions.
		_ = ask.Follow(ctx, server, ask.Whose{Principal: ask.Everyone}, func(list []call.Question) { tell("questions", list) }, nil)
	}()
	if client, err := server.Dial(ctx, watch.VerbName, nil); err == nil {
		defer client.Close()
		defer context.AfterFunc(ctx, func() { client.Close() })()
		for {
			var e watch.Event
			if client.Read(&e) != nil {
				break
			}
			if e.Call != nil {
				tell("call", e.Call)
			}
			if e.State != nil {
				tell("state", e.State)
			}
		}
	}
	cancel()
	<-asked
	select {
	case events <- event{kind: "gone", server: number}:
	case <-page.Done():
	}
}

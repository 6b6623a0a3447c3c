package live

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/ask"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
)

// files are the page, which is the same for every server; a script fills it from the
// events. html/template would be 2.8 MB of the program, because the linker keeps all
// exported methods of a program that looks up methods by name.
//
//go:embed page.html page.css page.js page.svg
var files embed.FS

// policy has browsers load only files of this address, and refuse markup that a script makes of
// text, whatever sandboxes print.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

const (
	// eventPause is the time between two events with the state of the server.
	eventPause = time.Second
	// maxViewers bounds the pages that are open.
	maxViewers = 16
)

// addPage serves the page, and the events that keep it new.
func (s *Site) addPage(ctx context.Context, mux *http.ServeMux) {
	handle := func(path string, h http.HandlerFunc) {
		mux.Handle(path, toThisHost(withDeadline(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy", policy)
			w.Header().Set("Referrer-Policy", "no-referrer")
			w.Header().Set("Cross-Origin-Opener-Policy", "same-origin")
			w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
			h(w, r)
		})))
	}
	for path, file := range map[string]struct{ name, kind string }{
		"/{$}":      {"page.html", "text/html"},
		"/page.css": {"page.css", "text/css"},
		"/page.js":  {"page.js", "text/javascript"},
		"/page.svg": {"page.svg", "image/svg+xml"},
		// Some browsers ask for it whatever the page says.
		"/favicon.ico": {"page.svg", "image/svg+xml"},
	} {
		content, _ := files.ReadFile(file.name) // is embedded
		handle("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", file.kind+"; charset=utf-8")
			_, _ = w.Write(content)
		})
	}
	if s.Answers != nil {
		handle("POST /answer", s.Answers.answer)
		handle("POST /forward", s.Answers.forward)
	}
	handle("GET /images/{call}/{file}", s.image)
	viewers := make(chan struct{}, maxViewers)
	handle("GET /events", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(keyHeader) != "" && (s.Answers == nil || !s.Answers.isUsers(r)) {
			http.Error(w, "this key is not of this server: nix-sandbox-mcp approve gives the link with its key", http.StatusForbidden)
			return
		}
		select {
		case viewers <- struct{}{}:
			defer func() { <-viewers }()
			s.events(ctx, w, r)
		default:
			http.Error(w, fmt.Sprintf("%d pages are open already", maxViewers), http.StatusServiceUnavailable)
		}
	})
}

// image serves an image of a call that has ended lately.
func (s *Site) image(w http.ResponseWriter, r *http.Request) {
	number, _ := strconv.ParseUint(r.PathValue("call"), 10, 64)
	index, err := strconv.Atoi(r.PathValue("file"))
	one, ok := s.Server.Find(number)
	if !ok || err != nil || index < 0 || index >= len(one.Files) || one.Files[index].Type == "" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", one.Files[index].Type)
	// Opened by itself, an image has no rights either.
	w.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox")
	_, _ = w.Write(one.Files[index].Content)
}

// events sends the calls that have ended lately, the oldest first, and each further one when it has
// ended; and once a second the state of the server, and the running calls that have changed. With the
// key it sends the open questions, and again when they change.
func (s *Site) events(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	wake, unfollow := s.Server.Follow()
	defer unfollow()
	changed, stop := s.Answers.listen(r)
	defer stop()
	_ = out.SetReadDeadline(time.Time{}) // that of the server is for the request
	send := func(event string, text []byte) bool {
		// JSON has no line breaks, so that no text can end the event.
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, text)
		return err == nil && out.Flush() == nil
	}
	seen, sent := uint64(0), map[uint64][sha256.Size]byte{}
	sendEnded := func() bool {
		var ended []watch.Card
		ended, seen = s.Server.EndedSince(seen)
		for _, c := range ended {
			if !send("call", jsonOf(c)) {
				return false
			}
		}
		return true
	}
	sendState := func() bool {
		running := map[uint64][sha256.Size]byte{}
		for _, c := range s.Server.Cards() {
			text := jsonOf(c)
			running[c.Number] = sha256.Sum256(text)
			if running[c.Number] != sent[c.Number] && !send("call", text) {
				return false
			}
		}
		sent = running
		now := s.Server.Now()
		now.Recent = nil // are events of their own
		return send("state", jsonOf(now))
	}
	ticker := time.NewTicker(eventPause)
	defer ticker.Stop()
	sendQuestions := func() bool {
		return changed == nil || send("questions", jsonOf(s.Answers.book.Questions(ask.Everyone)))
	}
	for isRead := sendQuestions() && sendEnded() && sendState(); isRead; {
		select {
		case <-ctx.Done():
			return
		case <-r.Context().Done():
			return
		case <-changed:
			isRead = sendQuestions()
		case <-wake:
			isRead = sendEnded()
		case <-ticker.C:
			isRead = sendEnded() && sendState()
		}
	}
}

func jsonOf(data any) []byte {
	text, _ := json.Marshal(data) // its types can be written
	return text
}

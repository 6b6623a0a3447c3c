package live

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/status"
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
	// eventPause is the time between two events with the state of the server. maxWaiting
	// bounds the calls that wait to be sent to a page.
	eventPause = time.Second
	maxWaiting = 32
	// maxViewers bounds the pages that are open.
	maxViewers = 16
)

// addPage serves the page, and the events that keep it new.
func (s *Site) addPage(ctx context.Context, mux *http.ServeMux) {
	handle := func(path string, h http.HandlerFunc) {
		mux.Handle("GET "+path, toThisHost(withDeadline(func(w http.ResponseWriter, r *http.Request) {
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
	} {
		content, _ := files.ReadFile(file.name) // is embedded
		handle(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", file.kind+"; charset=utf-8")
			_, _ = w.Write(content)
		})
	}
	handle("/images/{call}/{image}", s.image)
	viewers := make(chan struct{}, maxViewers)
	handle("/events", func(w http.ResponseWriter, r *http.Request) {
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
	index, err := strconv.Atoi(r.PathValue("image"))
	one, ok := s.Server.find(number)
	if !ok || err != nil || index < 0 || index >= len(one.Images) {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", one.Images[index].Type)
	// Opened by itself, an image has no rights either.
	w.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox")
	_, _ = w.Write(one.Images[index].Content)
}

// endedCall is a call as an event tells of it.
type endedCall struct {
	status.Call
	Code   string   `json:"code,omitempty"`
	Stdout string   `json:"stdout,omitempty"`
	Stderr string   `json:"stderr,omitempty"`
	Images []string `json:"images,omitempty"` // their paths
}

func ended(c status.Call) endedCall {
	one := endedCall{Call: c, Code: c.Code, Stdout: c.Stdout, Stderr: c.Stderr}
	for _, image := range c.Images {
		one.Images = append(one.Images, image.Path)
	}
	return one
}

// events sends the state of the server once a second, the calls that have ended lately,
// the oldest first, and each call when it has ended.
func (s *Site) events(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	calls := s.Server.follow()
	defer s.Server.unfollow(calls)
	send := func(event string, data any) bool {
		// JSON has no line breaks, so that no text can end the event.
		text, err := json.Marshal(data)
		if err != nil {
			return false
		}
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, text)
		return err == nil && out.Flush() == nil
	}
	sendState := func(now status.Snapshot) bool {
		now.Recent = nil // are events of their own
		return send("state", now)
	}
	now := s.Server.Now()
	for _, c := range slices.Backward(now.Recent) {
		if !send("call", ended(c)) {
			return
		}
	}
	ticker := time.NewTicker(eventPause)
	defer ticker.Stop()
	for isRead := sendState(now); isRead; {
		select {
		case <-ctx.Done():
			return
		case <-r.Context().Done():
			return
		case c := <-calls:
			if !slices.ContainsFunc(now.Recent, func(sent status.Call) bool { return sent.Number == c.Number }) {
				isRead = send("call", ended(*c))
			}
		case <-ticker.C:
			isRead = sendState(s.Server.Now())
		}
	}
}

// follow returns a channel of the calls that end from now on. Who does not receive misses
// calls.
func (s *Server) follow() chan *status.Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	viewer := make(chan *status.Call, maxWaiting)
	s.viewers[viewer] = true
	return viewer
}

func (s *Server) unfollow(viewer chan *status.Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.viewers, viewer)
}

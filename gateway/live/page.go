package live

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/ask"
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
	// eventPause is the time between two events with the state of the server, and maxCards how many
	// running calls are shown with their code and output.
	eventPause = time.Second
	maxCards   = 32
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
	one, ok := s.Server.find(number)
	if !ok || err != nil || index < 0 || index >= len(one.Files) || one.Files[index].Type == "" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", one.Files[index].Type)
	// Opened by itself, an image has no rights either.
	w.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox")
	_, _ = w.Write(one.Files[index].Content)
}

// card is a call with its contents, as an event tells of it. While the call runs, the output is its
// end so far, and Line is what came last.
type card struct {
	status.Call
	Code      status.Text   `json:"code,omitzero"`
	Stdout    status.Text   `json:"stdout,omitzero"`
	Stderr    status.Text   `json:"stderr,omitzero"`
	Line      string        `json:"line,omitempty"`
	Files     []status.File `json:"files,omitempty"`
	FileCount int           `json:"file_count,omitempty"`
}

func cardOf(c status.Call) card {
	return card{Call: c, Code: c.Code, Stdout: c.Stdout, Stderr: c.Stderr, Files: c.Files, FileCount: c.FileCount}
}

// events sends the calls that have ended lately, the oldest first, and each further one when it has
// ended; and once a second the state of the server, and the running calls that have changed. With the
// key it sends the open questions, and again when they change.
func (s *Site) events(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	wake := s.Server.follow()
	defer s.Server.unfollow(wake)
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
		var ended []status.Call
		ended, seen = s.Server.endedSince(seen)
		for _, c := range ended {
			if !send("call", jsonOf(cardOf(c))) {
				return false
			}
		}
		return true
	}
	sendState := func() bool {
		running := map[uint64][sha256.Size]byte{}
		for _, c := range s.Server.cards() {
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

// cards returns the calls that run, as many as are shown with their output.
func (s *Server) cards() (cards []card) {
	s.mu.Lock()
	numbers := slices.Sorted(maps.Keys(s.running))
	var all []*running
	for _, number := range numbers[:min(len(numbers), maxCards)] {
		all = append(all, s.running[number])
	}
	s.mu.Unlock()
	for _, c := range all {
		one := cardOf(c.Call)
		stdout, stderr, line := c.progress.Now(maxText / 2)
		one.Stdout, one.Stderr, one.Waits = cut(stdout), cut(stderr), c.progress.Waits()
		// Output beyond the environment's bound comes as its newest line, now and then.
		if one.Waits == "" && !strings.Contains(stdout.Head+stdout.Tail+stderr.Head+stderr.Tail, line) {
			one.Line = line
		}
		cards = append(cards, one)
	}
	return cards
}

// endedSince returns the calls that ended after the first n, as far as they are kept, and how many
// have ended in all.
func (s *Server) endedSince(n uint64) (calls []status.Call, all uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := min(s.ended-n, uint64(len(s.recent)))
	for _, c := range s.recent[uint64(len(s.recent))-fresh:] {
		calls = append(calls, *c)
	}
	return calls, s.ended
}

// follow returns a channel that receives when calls have ended.
func (s *Server) follow() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	viewer := make(chan struct{}, 1)
	s.viewers[viewer] = true
	return viewer
}

func (s *Server) unfollow(viewer chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.viewers, viewer)
}

package live

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

//go:embed page.html page.css page.js
var files embed.FS

// policy has browsers load and run nothing but what this address serves, whatever stands
// in the output of code.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const (
	// eventPause is the time between two events with the state of the server. maxWaiting
	// bounds the calls that wait to be sent to a page.
	eventPause = time.Second
	maxWaiting = 32
	// maxViewers bounds the pages that are open.
	maxViewers = 16
)

type onceFlag struct{ done atomic.Bool }

func (f *onceFlag) first() bool { return f.done.CompareAndSwap(false, true) }

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"seconds": seconds, "mib": func(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) },
	"duration": func(d time.Duration) string { return seconds(d.Seconds()) },
	"clock":    func(t time.Time) string { return t.Local().Format(time.TimeOnly) },
	"who": func(name string) string {
		if name == "" {
			return "(the one client)"
		}
		return name
	},
}).ParseFS(files, "page.html"))

// seconds writes a time as people read it.
func seconds(s float64) string {
	switch {
	case s < 1:
		return fmt.Sprintf("%.0f ms", 1000*s)
	case s < 100:
		return fmt.Sprintf("%.1f s", s)
	case s < 6000:
		return fmt.Sprintf("%.0f min", s/60)
	}
	return fmt.Sprintf("%.1f h", s/3600)
}

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
	handle("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(render("page", s.Server.Now()))
	})
	for name, kind := range map[string]string{"page.css": "text/css", "page.js": "text/javascript"} {
		content, _ := files.ReadFile(name) // is embedded
		handle("/"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind+"; charset=utf-8")
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

// render executes a template into memory, so that a slow reader holds up nothing.
func render(name string, data any) []byte {
	var out bytes.Buffer
	if err := templates.ExecuteTemplate(&out, name, data); err != nil {
		return []byte(template.HTMLEscapeString(err.Error()))
	}
	return out.Bytes()
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

// events sends the state of the server once a second where it has changed, and each call
// when it has ended.
func (s *Site) events(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	calls := s.Server.follow()
	defer s.Server.unfollow(calls)
	// What has come since the page was made.
	last, _ := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	send := func(event string, html []byte) bool {
		var text strings.Builder
		fmt.Fprintf(&text, "event: %s\n", event)
		for line := range strings.Lines(strings.ReplaceAll(string(html), "\r", "&#13;")) {
			fmt.Fprintf(&text, "data: %s\n", strings.TrimSuffix(line, "\n"))
		}
		text.WriteString("\n")
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err := w.Write([]byte(text.String()))
		return err == nil && out.Flush() == nil
	}
	now := s.Server.Now()
	for i := len(now.Recent) - 1; i >= 0; i-- {
		if c := now.Recent[i]; c.Number > last && !send("call", render("call", c)) {
			return
		}
	}
	sent := now
	ticker := time.NewTicker(eventPause)
	defer ticker.Stop()
	var before []byte
	for {
		if state := render("state", sent); !bytes.Equal(state, before) {
			if !send("state", state) {
				return
			}
			before = state
		}
		select {
		case <-ctx.Done():
			return
		case <-r.Context().Done():
			return
		case c := <-calls:
			if !isIn(now.Recent, c.Number) && !send("call", render("call", *c)) {
				return
			}
			sent = s.Server.Now()
		case <-ticker.C:
			sent = s.Server.Now()
		}
	}
}

func isIn(calls []Call, number uint64) bool {
	for _, c := range calls {
		if c.Number == number {
			return true
		}
	}
	return false
}

// follow returns a channel of the calls that end from now on. Who does not receive misses
// calls.
func (s *Server) follow() chan *Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	viewer := make(chan *Call, maxWaiting)
	s.viewers[viewer] = true
	return viewer
}

func (s *Server) unfollow(viewer chan *Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.viewers, viewer)
}

// Last is the number of the newest call of a snapshot.
func (s Snapshot) Last() uint64 {
	if len(s.Recent) == 0 {
		return 0
	}
	var last uint64
	for _, c := range s.Recent {
		last = max(last, c.Number)
	}
	return last
}

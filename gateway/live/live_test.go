package live

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// hostile is text that would be markup, script or the end of an event.
const hostile = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\r\n\r\nevent: state\ndata: x\x1b[2J\u202e"

func watched(contents bool) *watch.Server {
	s := watch.New(registry.New(&registry.Set{}))
	s.Contents = contents
	return s
}

func ran(s *watch.Server, c call.Call, result call.Result, err error) { s.Begin(c)(result, err) }

func result(stdout string, files ...sandbox.File) call.Result {
	return call.Result{Result: sandbox.Result{Outcome: "ok", Stdout: sandbox.Text{Head: stdout}, Files: files}}
}

// served serves a Server with its page, and returns its URL.
func served(t testing.TB, s *watch.Server) string {
	t.Helper()
	return servedWith(t, s, nil)
}

func servedWith(t testing.TB, s *watch.Server, answers *Answers) string {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	site := &Site{Server: s, Metrics: http.NotFoundHandler(), IsReady: func() bool { return true }, Page: true, Answers: answers, Log: slog.New(slog.DiscardHandler)}
	ctx, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- site.Serve(ctx, listener) }()
	t.Cleanup(func() {
		end()
		must.Do(t, <-done)
	})
	return "http://" + listener.Addr().String()
}

func get(t testing.TB, url string, change func(*http.Request)) (*http.Response, string) {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	if change != nil {
		change(request)
	}
	response := must.Get(http.DefaultClient.Do(request))(t)
	defer response.Body.Close()
	return response, string(must.Get(io.ReadAll(response.Body))(t))
}

// What comes of sandboxes is in no markup that the server sends, and cannot end an event;
// tests/page shows in a browser that the script makes none of it.
func TestPage_HoldsNothingOfSandboxes(t *testing.T) {
	s := watched(true)
	c := call.Call{Principal: hostile, Env: registry.Environment{Name: hostile}, Session: hostile, Code: hostile}
	ran(s, c, result(hostile, sandbox.File{Path: hostile, Type: "image/png", Content: []byte("png")}, sandbox.File{Path: "/x.svg", Type: "image/svg+xml", Content: []byte("<svg/>")}), nil)
	ran(s, c, call.Result{}, errors.New(hostile))
	url := served(t, s)
	next := follow(t, url)
	var one watch.Card
	must.Do(t, json.Unmarshal([]byte(next("call")), &one))
	if one.Code.Head != hostile || one.Stdout.Head != hostile || one.Session != hostile || len(one.Files) != 2 || one.Files[0].Path != hostile || one.Files[0].Type == "" || one.Files[1].Type != "" {
		t.Errorf("the first call is %+v", one)
	}
	one = watch.Card{}
	must.Do(t, json.Unmarshal([]byte(next("call")), &one))
	if one.Reason != hostile || one.Number != 2 {
		t.Errorf("the second call is %+v", one)
	}
	response, page := get(t, url+"/", nil)
	if want := must.Get(files.ReadFile("page.html"))(t); page != string(want) {
		t.Errorf("the page is\n%s", page)
	}
	for name, want := range map[string]string{"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Type": "text/html; charset=utf-8"} {
		if got := response.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	response, image := get(t, url+"/images/1/0", nil)
	if image != "png" || response.Header.Get("Content-Type") != "image/png" || response.Header.Get("Content-Security-Policy") != "default-src 'none'; sandbox" {
		t.Errorf("the image is %q with %v", image, response.Header)
	}
	for _, path := range []string{"/images/1/1", "/images/1/-1", "/images/9/0", "/images/x/y"} {
		if response, _ := get(t, url+path, nil); response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
}

// A page elsewhere reaches nothing, and neither does who writes.
func TestSite_IsForThisMachineAlone(t *testing.T) {
	url := served(t, watched(true))
	for _, path := range []string{"/", "/events", watch.Path, "/images/1/0", "/page.js", metricsPath} {
		for name, change := range map[string]func(*http.Request){
			"another host": func(r *http.Request) { r.Host = "evil.example" },
			"another page": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		} {
			if response, _ := get(t, url+path, change); response.StatusCode != http.StatusForbidden {
				t.Errorf("%s of %s: %s", path, name, response.Status)
			}
		}
	}
	response := must.Get(http.Post(url+watch.Path, "text/plain", strings.NewReader("x")))(t)
	response.Body.Close()
	if response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", response.Status)
	}
	// The control.
	if response, _ := get(t, url+"/page.js", nil); response.StatusCode != http.StatusOK {
		t.Errorf("a page of this machine: %s", response.Status)
	}
	// An address that others reach has metrics alone.
	site := &Site{Server: watched(false), Metrics: http.NotFoundHandler(), IsReady: func() bool { return false }, Page: true}
	for path, want := range map[string]int{"/": 404, "/events": 404, watch.Path: 404, "/healthz": 200, "/readyz": 503} {
		w := &recorded{header: http.Header{}, status: 200}
		site.handler(t.Context(), false).ServeHTTP(w, must.Get(http.NewRequest(http.MethodGet, path, nil))(t))
		if w.status != want {
			t.Errorf("%s at a public address: %d, want %d", path, w.status, want)
		}
	}
	for address, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "0.0.0.0:1": false, "192.0.2.1:1": false} {
		if got := IsPrivate(must.Get(net.ResolveTCPAddr("tcp", address))(t)); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
}

type recorded struct {
	header http.Header
	status int
}

func (r *recorded) Header() http.Header            { return r.header }
func (r *recorded) WriteHeader(status int)         { r.status = status }
func (r *recorded) Write(data []byte) (int, error) { return len(data), nil }

// follow reads the events of a page: the function returned gives the data of the next one
// of a kind, and fails the test where a line has any other form.
func follow(t testing.TB, url string, changes ...func(*http.Request)) (next func(event string) string) {
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/events", nil))(t)
	for _, change := range changes {
		change(request)
	}
	response := must.Get(http.DefaultClient.Do(request))(t)
	t.Cleanup(func() { response.Body.Close() })
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	return func(event string) string {
		t.Helper()
		for lines.Scan() {
			kind := lines.Text()
			lines.Scan()
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if lines.Scan(); !ok || lines.Text() != "" || kind != "event: call" && kind != "event: state" && kind != "event: questions" || strings.ContainsAny(data, "<>\r") {
				t.Fatalf("event %q with %q, then %q", kind, data, lines.Text())
			}
			if kind == "event: "+event {
				return data
			}
		}
		t.Fatal("the events end")
		return ""
	}
}

// A connection beyond the bound is closed without an answer, and there is room again when others
// are closed.
func TestSite_BoundsConnections(t *testing.T) {
	url := served(t, watched(false))
	ask := func() (net.Conn, error) {
		conn := must.Get(net.Dial("tcp", strings.TrimPrefix(url, "http://")))(t)
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		_, err := conn.Read(make([]byte, 1))
		return conn, err
	}
	var open []net.Conn
	for range maxConnections {
		conn, err := ask()
		must.Do(t, err)
		open = append(open, conn)
	}
	if _, err := ask(); err == nil {
		t.Errorf("connection %d is answered", maxConnections+1)
	}
	open[0].Close()
	patience.Until(t, "there is room again", func() bool {
		_, err := ask()
		return err == nil
	})
}

func TestEvents_TellOfEachCall(t *testing.T) {
	s := watched(true)
	ran(s, call.Call{Code: "first"}, result("1"), nil)
	next := follow(t, served(t, s))
	if got := next("call"); !strings.Contains(got, `"code":{"head":"first"}`) {
		t.Errorf("first: %s", got)
	}
	var state watch.Snapshot
	must.Do(t, json.Unmarshal([]byte(next("state")), &state))
	if state.PID != os.Getpid() || len(state.Principals) != 1 || state.Recent != nil {
		t.Errorf("state: %+v", state)
	}
	ran(s, call.Call{Code: "second"}, result("2"), nil)
	if got := next("call"); !strings.Contains(got, `"number":2`) || !strings.Contains(got, `"code":{"head":"second"}`) {
		t.Errorf("second: %s", got)
	}
	next("state") // comes again
}

// A call that runs has a card with its output so far, which changes when that does, and is replaced
// by its result. What it waits for is said, too.
func TestEvents_TellOfRunningCalls(t *testing.T) {
	s := watched(true)
	var progress sandbox.Progress
	end := s.Begin(call.Call{Code: "slow", Progress: &progress})
	next := follow(t, served(t, s))
	read := func() (one watch.Card) {
		must.Do(t, json.Unmarshal([]byte(next("call")), &one))
		return one
	}
	if one := read(); one.Outcome != "" || one.Waits == "" || one.Code.Head != "slow" {
		t.Errorf("before it begins: %+v", one)
	}
	progress.Say("building python+pandas: 1 of 2")
	if one := read(); one.Waits != "building python+pandas: 1 of 2" {
		t.Errorf("while it waits: %+v", one)
	}
	progress.Follow(func(limit int) (stdout, stderr sandbox.Text, line string) {
		return sandbox.Text{Tail: "end", Cut: 9}, sandbox.Text{}, "a newer line"
	})
	if one := read(); one.Outcome != "" || one.Waits != "" || one.Stdout != (watch.Text{Tail: "end", Cut: 9}) || one.Line != "a newer line" {
		t.Errorf("while it runs: %+v", one)
	}
	// Without a change there is no event.
	next("state")
	end(call.Result{Remarks: []string{"[timed out after 3 s]"}, Result: sandbox.Result{Outcome: "timeout"}}, nil)
	if one := read(); one.Outcome != "timeout" || one.Stdout.Tail != "" || !slices.Equal(one.Remarks, []string{"timed out after 3 s"}) {
		t.Errorf("at the end: %+v", one)
	}
}

package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/ask"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// hostile is text that would be markup, script or the end of an event.
const hostile = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\r\n\r\nevent: state\ndata: x\x1b[2J\u202e"

// server is a server at its desk.
type server struct {
	calls *watch.Server
	book  *ask.Book
	end   func()
}

// serving serves the verbs of a server in a folder.
func serving(t *testing.T, folder string, verbs ...desk.Verb) *server {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	s := &server{calls: watch.New(registry.New(&registry.Set{})), book: ask.New(log)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		desk.Serve(ctx, []string{folder}, nil, append(append(s.calls.Verbs(), ask.Verb(s.book)), verbs...), log)
	}()
	s.end = func() {
		cancel()
		<-done
	}
	t.Cleanup(s.end)
	patience.Until(t, "the server is found", func() bool { return len(desk.Find([]string{folder})) == 1 })
	return s
}

// opened is a page that looks for servers in folders.
func opened(t *testing.T, desks ...string) (s *site, url string) {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s = newSite(desks, filepath.Join(t.TempDir(), "changes"), filepath.Join(t.TempDir(), "config.toml"))
	ctx, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.serve(ctx, listener) }()
	t.Cleanup(func() {
		end()
		must.Do(t, <-done)
	})
	return s, "http://" + listener.Addr().String()
}

// alone is a page with one server.
func alone(t *testing.T, verbs ...desk.Verb) (*server, *site, string) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "desk")
	one := serving(t, folder, verbs...)
	s, url := opened(t, folder)
	return one, s, url
}

func withKey(key string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(keyHeader, key) }
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func get(t testing.TB, url string, changes ...func(*http.Request)) (*http.Response, string) {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	for _, change := range changes {
		change(request)
	}
	response := must.Get(http.DefaultClient.Do(request))(t)
	defer response.Body.Close()
	return response, string(must.Get(io.ReadAll(response.Body))(t))
}

// post sends what the page does, except for a change.
func post(t *testing.T, url, path, key string, what any, change func(*http.Request)) int {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, bytes.NewReader(must.Get(json.Marshal(what))(t))))(t)
	request.Header = http.Header{keyHeader: {key}, "Content-Type": {"application/json"}, "Origin": {url}, "Sec-Fetch-Site": {"same-origin"}}
	if change != nil {
		change(request)
	}
	response := must.Get(http.DefaultClient.Do(request))(t)
	response.Body.Close()
	return response.StatusCode
}

// eventsOf reads the events of a page: the function returned gives the next one of a kind, and fails the
// test where a line has any other form.
func eventsOf(t testing.TB, url string, changes ...func(*http.Request)) (next func(kind string, is any) (server int)) {
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/events", nil))(t)
	for _, change := range changes {
		change(request)
	}
	response := must.Get(http.DefaultClient.Do(request))(t)
	t.Cleanup(func() { response.Body.Close() })
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	kinds := []string{"call", "state", "questions", "gone", "servers", "patches"}
	return func(kind string, is any) int {
		t.Helper()
		for lines.Scan() {
			name, isEvent := strings.CutPrefix(lines.Text(), "event: ")
			lines.Scan()
			data, isData := strings.CutPrefix(lines.Text(), "data: ")
			if lines.Scan(); !isEvent || !isData || lines.Text() != "" || !slices.Contains(kinds, name) || strings.ContainsAny(data, "<>\r") {
				t.Fatalf("event %q with %q, then %q", name, data, lines.Text())
			}
			if name == kind {
				e := struct {
					Server int
					Is     any
				}{Is: is}
				must.Do(t, json.Unmarshal([]byte(data), &e))
				return e.Server
			}
		}
		t.Fatal("the events end")
		return 0
	}
}

func ran(s *watch.Server, c call.Call, result call.Result, err error) { s.Begin(c)(result, err) }

func result(stdout string, files ...sandbox.File) call.Result {
	return call.Result{Result: sandbox.Result{Outcome: "ok", Stdout: sandbox.Text{Head: stdout}, Files: files}}
}

// What comes of sandboxes is in no markup that is sent, and cannot end an event; tests/page shows in a
// browser that the script makes none of it.
func TestPage_HoldsNothingOfSandboxes(t *testing.T) {
	one, s, url := alone(t)
	c := call.Call{Principal: hostile, Env: registry.Environment{Name: hostile}, Session: hostile, Code: hostile}
	ran(one.calls, c, result(hostile, sandbox.File{Path: hostile, Type: "image/png", Content: []byte("png")}, sandbox.File{Path: "/x.svg", Type: "image/svg+xml", Content: []byte("<svg/>")}), nil)
	ran(one.calls, c, call.Result{}, errors.New(hostile))
	next := eventsOf(t, url, withKey(s.key))
	var shown watch.Card
	next("call", &shown)
	if shown.Code.Head != hostile || shown.Stdout.Head != hostile || shown.Session != hostile || len(shown.Files) != 2 || shown.Files[0].Path != hostile || shown.Files[0].Type == "" || shown.Files[1].Type != "" {
		t.Errorf("the first call is %+v", shown)
	}
	shown = watch.Card{}
	next("call", &shown)
	if shown.Reason != hostile || shown.Number != 2 {
		t.Errorf("the second call is %+v", shown)
	}
	response, page := get(t, url+"/")
	if want := must.Get(files.ReadFile("page.html"))(t); page != string(want) {
		t.Errorf("the page is\n%s", page)
	}
	for name, want := range map[string]string{"Content-Security-Policy": contentPolicy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Type": "text/html; charset=utf-8"} {
		if got := response.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	response, image := get(t, url+"/images/0/1/0", withKey(s.key))
	if image != "png" || response.Header.Get("Content-Type") != "image/png" {
		t.Errorf("the image is %q with %v", image, response.Header)
	}
	for _, path := range []string{"/images/0/1/1", "/images/0/1/-1", "/images/0/9/0", "/images/x/y/z", "/images/1/1/0", "/images/-1/1/0", "/patches/..%2f..", "/patches/none"} {
		if response, _ := get(t, url+path, withKey(s.key)); response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
}

// A client without the key reaches the page's own files alone, and a page elsewhere not even them.
func TestPage_IsForTheUserAlone(t *testing.T) {
	_, s, url := alone(t)
	for _, path := range []string{"/events", "/images/0/1/0", "/patches/x"} {
		for name, change := range map[string]func(*http.Request){
			"no key": func(*http.Request) {}, "an empty key": withKey(""), "a wrong key": withKey(strings.Repeat("A", 26)), "a part of the key": withKey(s.key[:25]),
			"the key in a query": func(r *http.Request) { r.URL.RawQuery = "key=" + s.key },
		} {
			if response, _ := get(t, url+path, change); response.StatusCode != http.StatusForbidden {
				t.Errorf("%s with %s: %s", path, name, response.Status)
			}
		}
	}
	for _, path := range []string{"/", "/events", "/page.js"} {
		for name, change := range map[string]func(*http.Request){
			"another host": func(r *http.Request) { r.Host = "evil.example" },
			"another page": header("Sec-Fetch-Site", "cross-site"),
		} {
			if response, _ := get(t, url+path, withKey(s.key), change); response.StatusCode != http.StatusForbidden {
				t.Errorf("%s of %s: %s", path, name, response.Status)
			}
		}
	}
	// The control.
	if response, _ := get(t, url+"/page.js"); response.StatusCode != http.StatusOK {
		t.Errorf("a page of this machine: %s", response.Status)
	}
	if other, _ := opened(t); other.key == s.key || len(s.key) < 26 {
		t.Errorf("the keys are %q and %q", other.key, s.key)
	}
}

// asks is an executor whose calls ask about a matter.
type asks func(ctx context.Context, c call.Call)

func (a asks) Answer(ctx context.Context, c call.Call) (call.Result, error) {
	a(ctx, c)
	return call.Result{}, nil
}

// decide has a principal's call ask, and returns where its choice comes.
func decide(t *testing.T, book *ask.Book, principal string) <-chan call.Choice {
	chosen := make(chan call.Choice, 1)
	c := call.Call{Principal: principal, Env: registry.Environment{Name: "python", AskWithin: time.Minute}}
	go func() {
		_, _ = book.Executor(asks(func(ctx context.Context, c call.Call) {
			chosen <- c.User.Decide(ctx, call.Matter{Kind: call.ToTool, Name: "github.create_issue", Arguments: hostile})
		})).Answer(t.Context(), c)
	}()
	return chosen
}

// list waits for a list of the page's questions that has a number of them.
func list(t *testing.T, next func(string, any) int, count int) (questions []call.Question) {
	t.Helper()
	for {
		questions = nil
		next("questions", &questions)
		if len(questions) == count {
			return questions
		}
	}
}

// An open page makes a server ask that has no other way, and answers for each principal. What is no
// answer of that page changes nothing.
func TestAnswers_OnlyOfThePageWithTheKey(t *testing.T) {
	one, s, url := alone(t)
	if choice := <-decide(t, one.book, "alice"); choice != call.Nobody {
		t.Fatalf("without a page: %q", choice)
	}
	next := eventsOf(t, url, withKey(s.key))
	list(t, next, 0)
	chosen := decide(t, one.book, "alice")
	question := list(t, next, 1)[0]
	if question.Principal != "alice" || !strings.Contains(question.Text, "> github.create_issue") || strings.ContainsAny(question.Text, "\x1b\u202e\r") {
		t.Errorf("the question is %+v", question)
	}
	type sent struct {
		Server int         `json:"server"`
		ID     string      `json:"id"`
		Choice call.Choice `json:"choice"`
	}
	reply := sent{ID: question.ID, Choice: call.Once}
	for name, test := range map[string]struct {
		want   int
		reply  any
		change func(*http.Request)
	}{
		"no key":             {403, reply, func(r *http.Request) { r.Header.Del(keyHeader) }},
		"a wrong key":        {403, reply, withKey(strings.Repeat("A", 26))},
		"the key in a query": {403, reply, func(r *http.Request) { r.Header.Del(keyHeader); r.URL.RawQuery = "key=" + s.key }},
		"the key in a cookie": {403, reply, func(r *http.Request) {
			r.Header.Del(keyHeader)
			r.AddCookie(&http.Cookie{Name: "key", Value: s.key})
		}},
		"another origin":       {403, reply, header("Origin", "http://evil.example")},
		"another port":         {403, reply, header("Origin", "http://127.0.0.1:1")},
		"an opaque origin":     {403, reply, header("Origin", "null")},
		"no origin":            {403, reply, func(r *http.Request) { r.Header.Del("Origin") }},
		"another site":         {403, reply, header("Sec-Fetch-Site", "cross-site")},
		"another page's port":  {403, reply, header("Sec-Fetch-Site", "same-site")},
		"another host":         {403, reply, func(r *http.Request) { r.Host = "evil.example"; r.Header.Set("Origin", "http://evil.example") }},
		"GET":                  {405, reply, func(r *http.Request) { r.Method = http.MethodGet }},
		"PUT":                  {405, reply, func(r *http.Request) { r.Method = http.MethodPut }},
		"a form":               {415, reply, header("Content-Type", "application/x-www-form-urlencoded")},
		"text":                 {415, reply, header("Content-Type", "text/plain")},
		"an oversized answer":  {400, map[string]string{"id": reply.ID, "choice": "once", "x": strings.Repeat("x", maxBody)}, nil},
		"no object":            {400, []string{reply.ID}, nil},
		"another question":     {409, sent{ID: strings.Repeat("A", 26), Choice: call.Once}, nil},
		"no question":          {409, sent{Choice: call.Once}, nil},
		"another server":       {409, sent{Server: 1, ID: reply.ID, Choice: call.Once}, nil},
		"no server":            {409, sent{Server: -1, ID: reply.ID, Choice: call.Once}, nil},
		"a choice not offered": {409, sent{ID: reply.ID, Choice: call.ForSession}, nil},
		"no choice":            {409, sent{ID: reply.ID}, nil},
	} {
		if got := post(t, url, "/answer", s.key, test.reply, test.change); got != test.want {
			t.Errorf("%s: status %d, want %d", name, got, test.want)
		}
	}
	select {
	case choice := <-chosen:
		t.Fatalf("something else answered %q", choice)
	default:
	}
	// The control, and the same once more.
	if got := post(t, url, "/answer", s.key, reply, nil); got != http.StatusNoContent {
		t.Errorf("the answer: status %d", got)
	}
	if choice := <-chosen; choice != call.Once {
		t.Errorf("chose %q", choice)
	}
	list(t, next, 0)
	second := decide(t, one.book, "bob")
	if got := post(t, url, "/answer", s.key, reply, nil); got != http.StatusConflict {
		t.Errorf("an answer sent twice: status %d", got)
	}
	question = list(t, next, 1)[0]
	must.Do(t, one.book.Answer("bob", question.ID, call.No)) // another way is faster
	list(t, next, 0)
	if choice := <-second; choice != call.No {
		t.Errorf("chose %q", choice)
	}
}

// When the page is closed, what it alone could answer is refused at once.
func TestAnswers_EndWithThePage(t *testing.T) {
	one, s, url := alone(t)
	ctx, closePage := context.WithCancel(t.Context())
	next := eventsOf(t, url, withKey(s.key), func(r *http.Request) { *r = *r.WithContext(ctx) })
	list(t, next, 0)
	chosen := decide(t, one.book, "")
	list(t, next, 1)
	closePage()
	select {
	case choice := <-chosen:
		if choice != call.Nobody {
			t.Errorf("chose %q", choice)
		}
	case <-time.After(patience.For(patience.Long)):
		t.Error("the question is still open")
	}
}

// Only the page with the key reaches ports of sessions, and as long as it reads the answer.
func TestForward_OnlyOfThePageWithTheKey(t *testing.T) {
	forwarded, over := make(chan string, 10), make(chan struct{})
	_, s, url := alone(t, desk.Verb{Name: visit.ForwardVerbName, Serve: func(_ context.Context, c *desk.Conn) error {
		var args visit.ForwardArgs
		if err := c.Args(&args); err != nil || args.Session != "s" {
			return errors.New("no session " + args.Session)
		}
		forwarded <- fmt.Sprint(args.Session, " ", args.Port)
		if err := c.Write(visit.Forwarded{Address: "127.0.0.1:9"}); err != nil {
			return err
		}
		_ = c.Read(new(struct{}))
		close(over)
		return nil
	}})
	eventsOf(t, url, withKey(s.key))("state", new(watch.Snapshot)) // the page knows its servers now
	to := map[string]any{"session": "s", "port": 8000}
	for name, test := range map[string]struct {
		want   int
		to     any
		change func(*http.Request)
	}{
		"no key":          {403, to, func(r *http.Request) { r.Header.Del(keyHeader) }},
		"a wrong key":     {403, to, withKey(strings.Repeat("A", 26))},
		"another origin":  {403, to, header("Origin", "http://evil.example")},
		"no origin":       {403, to, func(r *http.Request) { r.Header.Del("Origin") }},
		"another site":    {403, to, header("Sec-Fetch-Site", "cross-site")},
		"another host":    {403, to, func(r *http.Request) { r.Host = "evil.example"; r.Header.Set("Origin", "http://evil.example") }},
		"GET":             {405, to, func(r *http.Request) { r.Method = http.MethodGet }},
		"a form":          {415, to, header("Content-Type", "application/x-www-form-urlencoded")},
		"no port":         {400, map[string]any{"session": "s", "port": 65536}, nil},
		"another session": {409, map[string]any{"session": "other", "port": 1}, nil},
		"another server":  {409, map[string]any{"server": 7, "session": "s", "port": 1}, nil},
	} {
		if got := post(t, url, "/forward", s.key, test.to, test.change); got != test.want {
			t.Errorf("%s: status %d, want %d", name, got, test.want)
		}
	}
	select {
	case what := <-forwarded:
		t.Fatalf("something else reached %s", what)
	default:
	}
	ctx, closePage := context.WithCancel(t.Context())
	request := must.Get(http.NewRequestWithContext(ctx, http.MethodPost, url+"/forward", strings.NewReader(`{"server":0,"session":"s","port":8000}`)))(t)
	request.Header = http.Header{keyHeader: {s.key}, "Content-Type": {"application/json"}, "Origin": {url}}
	response := must.Get(http.DefaultClient.Do(request))(t)
	defer response.Body.Close()
	if line := must.Get(bufio.NewReader(response.Body).ReadString('\n'))(t); line != "127.0.0.1:9\n" || <-forwarded != "s 8000" {
		t.Errorf("the answer is %q", line)
	}
	select {
	case <-over:
		t.Error("it ends before the page")
	default:
	}
	closePage()
	select {
	case <-over:
	case <-time.After(patience.For(patience.Long)):
		t.Error("it does not end with the page")
	}
}

// A page shows all servers, also one that starts later, and goes on when one of them ends.
func TestEvents_TellOfAllServers(t *testing.T) {
	folder := t.TempDir()
	desks := []string{filepath.Join(folder, "a"), filepath.Join(folder, "b")}
	first := serving(t, desks[0])
	first.calls.Project = "/home/user/first"
	ran(first.calls, call.Call{Code: "of the first"}, result("1"), nil)
	s, url := opened(t, desks...)
	next := eventsOf(t, url, withKey(s.key))
	var shown watch.Card
	at := next("call", &shown)
	if at != 0 || shown.Code.Head != "of the first" {
		t.Errorf("server %d: %+v", at, shown)
	}
	var state watch.Snapshot
	if next("state", &state); state.Project != "/home/user/first" || state.Recent != nil {
		t.Errorf("its state is %+v", state)
	}
	second := serving(t, desks[1])
	for at = 0; at != 1; at = next("questions", new([]call.Question)) { // it is asked, too
	}
	ran(second.calls, call.Call{Code: "of the second"}, result("2"), nil)
	for shown = (watch.Card{}); shown.Code.Head != "of the second"; at = next("call", &shown) {
	}
	if at != 1 {
		t.Errorf("the second server is %d", at)
	}
	// Both ask, and the answer goes to the one that is meant.
	ofFirst, ofSecond := decide(t, first.book, ""), decide(t, second.book, "")
	asked := map[int]call.Question{}
	for len(asked) < 2 {
		var questions []call.Question
		if at := next("questions", &questions); len(questions) > 0 {
			asked[at] = questions[0]
		}
	}
	if got := post(t, url, "/answer", s.key, map[string]any{"server": 1, "id": asked[1].ID, "choice": call.No}, nil); got != http.StatusNoContent || <-ofSecond != call.No {
		t.Errorf("an answer for the second: status %d", got)
	}
	first.end()
	if at := next("gone", new(any)); at != 0 {
		t.Errorf("server %d has gone", at)
	}
	<-ofFirst
	ran(second.calls, call.Call{Code: "afterwards"}, result("3"), nil)
	for shown = (watch.Card{}); shown.Code.Head != "afterwards"; at = next("call", &shown) {
	}
	if at != 1 {
		t.Errorf("the second server is %d now", at)
	}
	if response, _ := get(t, url+"/images/0/1/0", withKey(s.key)); response.StatusCode != http.StatusNotFound {
		t.Errorf("an image of a server that has ended: %s", response.Status)
	}
}

// A call that runs has a card with its output so far, which changes when that does, and is replaced
// by its result. What it waits for is said, too.
func TestEvents_TellOfRunningCalls(t *testing.T) {
	one, s, url := alone(t)
	var progress sandbox.Progress
	end := one.calls.Begin(call.Call{Code: "slow", Progress: &progress})
	next := eventsOf(t, url, withKey(s.key))
	read := func() (card watch.Card) {
		next("call", &card)
		return card
	}
	if card := read(); card.Outcome != "" || card.Waits == "" || card.Code.Head != "slow" {
		t.Errorf("before it begins: %+v", card)
	}
	progress.Say("building python+pandas: 1 of 2")
	if card := read(); card.Waits != "building python+pandas: 1 of 2" {
		t.Errorf("while it waits: %+v", card)
	}
	progress.Follow(func(limit int) (stdout, stderr sandbox.Text, line string) {
		return sandbox.Text{Tail: "end", Cut: 9}, sandbox.Text{}, "a newer line"
	})
	if card := read(); card.Outcome != "" || card.Waits != "" || card.Stdout != (watch.Text{Tail: "end", Cut: 9}) || card.Line != "a newer line" {
		t.Errorf("while it runs: %+v", card)
	}
	// Without a change there is no event.
	next("state", new(watch.Snapshot))
	end(call.Result{Remarks: []string{"[timed out after 3 s]"}, Result: sandbox.Result{Outcome: "timeout"}}, nil)
	if card := read(); card.Outcome != "timeout" || card.Stdout.Tail != "" || !slices.Equal(card.Remarks, []string{"timed out after 3 s"}) {
		t.Errorf("at the end: %+v", card)
	}
}

package live

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/ask"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

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

// answering is a site whose page answers the questions of a book.
func answering(t *testing.T) (book *ask.Book, answers *Answers, url string) {
	book = ask.New(slog.New(slog.DiscardHandler))
	answers = NewAnswers(book)
	return book, answers, servedWith(t, watched(true), answers)
}

// list waits for a list of the page's questions that has a number of them.
func list(t *testing.T, next func(string) string, count int) (questions []call.Question) {
	t.Helper()
	for {
		questions = nil
		must.Do(t, json.Unmarshal([]byte(next("questions")), &questions))
		if len(questions) == count {
			return questions
		}
	}
}

// post sends an answer as the page does, except for a change.
func post(t *testing.T, url, key string, reply any, change func(*http.Request)) int {
	t.Helper()
	return postTo(t, url, "/answer", key, reply, change)
}

func postTo(t *testing.T, url, path, key string, reply any, change func(*http.Request)) int {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, bytes.NewReader(must.Get(json.Marshal(reply))(t))))(t)
	request.Header = http.Header{keyHeader: {key}, "Content-Type": {"application/json"}, "Origin": {url}, "Sec-Fetch-Site": {"same-origin"}}
	if change != nil {
		change(request)
	}
	response := must.Get(http.DefaultClient.Do(request))(t)
	response.Body.Close()
	return response.StatusCode
}

func withKey(key string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(keyHeader, key) }
}

// A page with the key makes a server ask that has no other way, and answers for each principal. What
// is no answer of that page changes nothing.
func TestAnswers_OnlyOfThePageWithTheKey(t *testing.T) {
	book, answers, url := answering(t)
	if choice := <-decide(t, book, "alice"); choice != call.Nobody {
		t.Fatalf("without a page: %q", choice)
	}
	follow(t, url)("state")
	if choice := <-decide(t, book, "alice"); choice != call.Nobody {
		t.Errorf("a page without the key made the server wait: %q", choice)
	}
	if response, _ := get(t, url+"/events", withKey("wrong")); response.StatusCode != http.StatusForbidden {
		t.Errorf("events with a wrong key: %s", response.Status)
	}
	next := follow(t, url, withKey(answers.key))
	list(t, next, 0)
	chosen := decide(t, book, "alice")
	question := list(t, next, 1)[0]
	if question.Principal != "alice" || !strings.Contains(question.Text, "> github.create_issue") || strings.ContainsAny(question.Text, "\x1b\u202e\r") {
		t.Errorf("the question is %+v", question)
	}
	reply := ask.Reply{ID: question.ID, Choice: call.Once}
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for name, one := range map[string]struct {
		want   int
		reply  any
		change func(*http.Request)
	}{
		"no key":             {403, reply, func(r *http.Request) { r.Header.Del(keyHeader) }},
		"an empty key":       {403, reply, withKey("")},
		"a wrong key":        {403, reply, withKey(strings.Repeat("A", 26))},
		"a part of the key":  {403, reply, withKey(answers.key[:25])},
		"the key in a query": {403, reply, func(r *http.Request) { r.Header.Del(keyHeader); r.URL.RawQuery = "key=" + answers.key }},
		"the key in a cookie": {403, reply, func(r *http.Request) {
			r.Header.Del(keyHeader)
			r.AddCookie(&http.Cookie{Name: "key", Value: answers.key})
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
		"an oversized answer":  {400, map[string]string{"id": reply.ID, "choice": "once", "x": strings.Repeat("x", maxAnswer)}, nil},
		"no object":            {400, []string{reply.ID}, nil},
		"another question":     {409, ask.Reply{ID: strings.Repeat("A", 26), Choice: call.Once}, nil},
		"no question":          {409, ask.Reply{Choice: call.Once}, nil},
		"a choice not offered": {409, ask.Reply{ID: reply.ID, Choice: call.ForSession}, nil},
		"no choice":            {409, ask.Reply{ID: reply.ID}, nil},
	} {
		if got := post(t, url, answers.key, one.reply, one.change); got != one.want {
			t.Errorf("%s: status %d, want %d", name, got, one.want)
		}
	}
	select {
	case choice := <-chosen:
		t.Fatalf("something else answered %q", choice)
	default:
	}
	// The control, and the same once more.
	if got := post(t, url, answers.key, reply, nil); got != http.StatusNoContent {
		t.Errorf("the answer: status %d", got)
	}
	if choice := <-chosen; choice != call.Once {
		t.Errorf("chose %q", choice)
	}
	list(t, next, 0)
	second := decide(t, book, "bob")
	if got := post(t, url, answers.key, reply, nil); got != http.StatusConflict {
		t.Errorf("an answer sent twice: status %d", got)
	}
	question = list(t, next, 1)[0]
	must.Do(t, book.Answer("bob", question.ID, call.No)) // another way is faster
	list(t, next, 0)
	if choice := <-second; choice != call.No {
		t.Errorf("chose %q", choice)
	}
}

// Only the page with the key reaches ports of sessions, and as long as it reads the answer.
func TestForward_OnlyOfThePageWithTheKey(t *testing.T) {
	_, answers, url := answering(t)
	forwarded, over := make(chan string, 10), make(chan struct{})
	answers.Forward = func(ctx context.Context, session string, port uint16) (string, error) {
		if session != "s" {
			return "", errors.New("no session " + session)
		}
		forwarded <- fmt.Sprint(session, " ", port)
		context.AfterFunc(ctx, func() { close(over) })
		return "127.0.0.1:9", nil
	}
	to := map[string]any{"session": "s", "port": 8000}
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for name, one := range map[string]struct {
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
	} {
		if got := postTo(t, url, "/forward", answers.key, one.to, one.change); got != one.want {
			t.Errorf("%s: status %d, want %d", name, got, one.want)
		}
	}
	select {
	case what := <-forwarded:
		t.Fatalf("something else reached %s", what)
	default:
	}
	ctx, closePage := context.WithCancel(t.Context())
	request := must.Get(http.NewRequestWithContext(ctx, http.MethodPost, url+"/forward", strings.NewReader(`{"session":"s","port":8000}`)))(t)
	request.Header = http.Header{keyHeader: {answers.key}, "Content-Type": {"application/json"}, "Origin": {url}}
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

// When the page is closed, what it alone could answer is refused at once.
func TestAnswers_EndWithThePage(t *testing.T) {
	book, answers, url := answering(t)
	ctx, closePage := context.WithCancel(t.Context())
	next := follow(t, url, withKey(answers.key), func(r *http.Request) { *r = *r.WithContext(ctx) })
	list(t, next, 0)
	chosen := decide(t, book, "")
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

func TestAnswers_LinkIsForBrowsers(t *testing.T) {
	answers := NewAnswers(nil)
	if got, want := answers.Link(&net.TCPAddr{IP: net.IPv6loopback, Port: 9464}), "http://[::1]:9464/#key="+answers.key; got != want || len(answers.key) < 26 {
		t.Errorf("the link is %q, want %q", got, want)
	}
	if got := answers.Link(&net.UnixAddr{Name: "/run/x", Net: "unix"}); got != "" {
		t.Errorf("the link of a socket is %q", got)
	}
	if NewAnswers(nil).key == answers.key {
		t.Error("two servers have one key")
	}
}

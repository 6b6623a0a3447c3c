package mcpstdio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Bounds that a test reaches soon.
const (
	shortLine  = 256 << 10
	fewCalls   = 100
	fewBytes   = 1 << 20
	fewListens = 3
)

// executor answers calls by their code.
type executor func(ctx context.Context, code string) string

func (f executor) Answer(ctx context.Context, c call.Call) (call.Result, error) {
	return call.Result{Result: sandbox.Result{Outcome: frame.OutcomeOK, Stdout: sandbox.Text{Head: f(ctx, c.Code)}}}, nil
}

// recorder notes in which order tickets are taken, and how many are released.
type recorder struct {
	tool.Sessions
	mu       sync.Mutex
	taken    []string
	released int
	first    int // how often the first answer was reported
}

func (r *recorder) Environments(call.Key) []registry.Environment { return nil }

func (r *recorder) Enqueue(key call.Key) *call.Ticket {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = append(r.taken, key.ID)
	return call.NewTicket(key, nil, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.released++
	})
}

func (r *recorder) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first++
}

// handler is one of a tool whose calls f answers.
func handler(f executor, sessions tool.Sessions) (*rpc.Handler, *registry.Registry) {
	set := registry.New(&registry.Set{Environments: map[string]registry.Environment{"e": {Name: "e", Language: &registry.Language{Sessions: true}, SessionExec: "/session-run"}}})
	log := slog.New(slog.DiscardHandler)
	h, _ := rpc.New(tool.New(tool.Options{Environments: set, Executor: f, Sessions: sessions, Log: log}), "1", &rpc.Bounds{Calls: fewCalls, Bytes: fewBytes}, log)
	return h, set
}

// link is a server of the test's tools and what it wrote.
type link struct {
	t        *testing.T
	set      *registry.Registry
	in       *io.PipeWriter
	replies  chan reply
	served   chan error
	cancel   context.CancelFunc
	recorder *recorder
	under    *Server
}

// reply is what the tests check of a line.
type reply struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params map[string]any  `json:"params"`
	Result map[string]any  `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func (r reply) text() string {
	content, _ := r.Result["content"].([]any)
	if len(content) == 0 {
		return ""
	}
	first, _ := content[0].(map[string]any)
	text, _ := first["text"].(string)
	return text
}

// dial starts a server whose calls f answers.
func dial(t *testing.T, f executor) *link {
	t.Helper()
	r := &recorder{}
	h, set := handler(f, r)
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	// As many replies wait as a test lets wait, as in a pipe of the kernel.
	l := &link{t: t, set: set, in: inWrite, replies: make(chan reply, 4096), served: make(chan error, 1), cancel: cancel, recorder: r}
	go l.read(outRead)
	l.under = New(h, r.answered)
	l.under.maxLine, l.under.listening = shortLine, make(chan struct{}, fewListens)
	go func() {
		err := l.under.Serve(ctx, inRead, outWrite)
		inRead.CloseWithError(io.ErrClosedPipe)
		outWrite.Close()
		l.served <- err
	}()
	t.Cleanup(func() {
		cancel()
		inWrite.Close()
		outRead.Close()
	})
	return l
}

func (l *link) send(lines ...string) {
	l.t.Helper()
	l.raw([]byte(strings.Join(lines, "\n") + "\n"))
}

// change has the tool read otherwise.
func (l *link) change() {
	l.set.Publish(&registry.Set{Environments: map[string]registry.Environment{"more": {Name: "more", SessionExec: "/session-run"}}})
}

func (l *link) raw(data []byte) {
	l.t.Helper()
	if _, err := l.in.Write(data); err != nil {
		l.t.Fatal(err)
	}
}

// read takes in what the server writes.
func (l *link) read(out io.Reader) {
	defer close(l.replies)
	reader := bufio.NewReader(out)
	for {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return
		}
		var r reply
		if err := json.Unmarshal(line, &r); err != nil {
			l.t.Errorf("the server wrote %.100q: %v", line, err)
		}
		l.replies <- r
	}
}

// next returns the next message of the server.
func (l *link) next() reply {
	l.t.Helper()
	select {
	case r, ok := <-l.replies:
		if !ok {
			l.t.Fatal("the server's output has ended")
		}
		return r
	case <-time.After(patience.Long):
		l.t.Fatalf("nothing came within %v", patience.Long)
		return reply{}
	}
}

func (l *link) wait() error {
	l.t.Helper()
	select {
	case err := <-l.served:
		return err
	case <-time.After(patience.Long):
		l.t.Fatalf("the server serves on after %v", patience.Long)
		return nil
	}
}

const ping = `{"jsonrpc":"2.0","id":"ping","method":"ping"}`

func initialize(version string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, version)
}

func run(id int, code string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"run","arguments":{"env":"e","code":%q}}}`, id, code)
}

func runIn(id int, session string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"run","arguments":{"env":"e","code":"x","session":%q}}}`, id, session)
}

func cancelled(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id)
}

func echo(_ context.Context, code string) string { return code }

// The first answer is reported once, and one to a ping is none.
func TestFirstAnswer(t *testing.T) {
	l := dial(t, echo)
	reported := func() int {
		// Answered in order: what came before this ping is done.
		l.send(ping)
		for string(l.next().ID) != `"ping"` {
		}
		l.recorder.mu.Lock()
		defer l.recorder.mu.Unlock()
		return l.recorder.first
	}
	if n := reported(); n != 0 {
		t.Errorf("reported %d times before initialize", n)
	}
	for range 2 {
		l.send(initialize("2025-11-25"))
		if n := reported(); n != 1 {
			t.Errorf("reported %d times after initialize", n)
		}
	}
}

// Calls that still run at the end of input are answered.
func TestDrainAtEndOfInput(t *testing.T) {
	release := make(chan struct{})
	l := dial(t, func(_ context.Context, n string) string { <-release; return n })
	l.send(initialize("2025-11-25"), `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for i := range 20 {
		l.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"run","arguments":{"env":"e","code":"%d","session":"s"}}}`, i, i))
	}
	l.in.Close()
	if first := l.next(); string(first.ID) != `"init"` {
		t.Errorf("the first reply is to %s", first.ID)
	}
	close(release)
	seen := map[string]string{}
	for range 20 {
		r := l.next()
		seen[string(r.ID)] = r.text()
	}
	for i := range 20 {
		if n := fmt.Sprint(i); seen[n] != n {
			t.Errorf("call %s was answered %q", n, seen[n])
		}
	}
	if err := l.wait(); err != nil {
		t.Errorf("served: %v", err)
	}
	if l.recorder.released != 20 {
		t.Errorf("%d of 20 calls released their tickets", l.recorder.released)
	}
}

// What is not a call is answered in order of arrival, before calls that came
// after it.
func TestOrder(t *testing.T) {
	for range 50 {
		l := dial(t, echo)
		l.send(initialize("2025-11-25"), run(1, "a"), ping)
		if got := string(l.next().ID); got != `"init"` {
			t.Fatalf("the first reply is to %s", got)
		}
		l.in.Close()
		l.next()
		l.next()
		l.wait()
	}
}

// Calls take their tickets in order of arrival, whatever order they run in.
func TestAdmissionOrder(t *testing.T) {
	l := dial(t, echo)
	var want []string
	go func() {
		for i := range 90 {
			l.in.Write([]byte(runIn(i, fmt.Sprint(i)) + "\n"))
		}
	}()
	for i := range 90 {
		want = append(want, fmt.Sprint(i))
		l.next()
	}
	l.recorder.mu.Lock()
	defer l.recorder.mu.Unlock()
	if diff := cmp.Diff(want, l.recorder.taken); diff != "" {
		t.Error(diff)
	}
}

// Calls do not wait for each other: none of these ends before all have begun.
func TestCallsSideBySide(t *testing.T) {
	var begun sync.WaitGroup
	begun.Add(100)
	l := dial(t, func(_ context.Context, n string) string {
		begun.Done()
		begun.Wait()
		return n
	})
	for i := range 100 {
		l.send(run(i, "x"))
	}
	for range 100 {
		l.next()
	}
}

// Notifications of a call arrive, all of them, in order and before its result.
func TestNotificationsBeforeTheResult(t *testing.T) {
	var l *link
	l = dial(t, func(_ context.Context, n string) string {
		for i := range 1000 {
			l.under.conn.Notify(mcp.JSONRPCNotification{JSONRPC: "2.0", Notification: mcp.Notification{
				Method: "notifications/progress",
				Params: mcp.NotificationParams{AdditionalFields: map[string]any{"progress": i}},
			}})
		}
		return n
	})
	l.send(run(1, "done"))
	for i := range 1000 {
		if r := l.next(); r.Method != "notifications/progress" || r.Params["progress"] != float64(i) {
			t.Fatalf("line %d is %+v", i, r)
		}
	}
	if r := l.next(); r.text() != "done" {
		t.Errorf("the last line is %+v", r)
	}
}

// A cancellation that comes on the heels of its call is not lost, although
// the call's goroutine may not have run yet. Cancelled calls are not answered.
func TestCancelAtOnce(t *testing.T) {
	ended := make(chan string, 200)
	l := dial(t, func(ctx context.Context, _ string) string {
		select {
		case <-ctx.Done():
			ended <- "cancelled"
		case <-time.After(patience.Long / 2):
			ended <- "ran on"
		}
		return "an answer"
	})
	for i := range 200 {
		l.send(run(i, "x"), cancelled(i))
		if got := <-ended; got != "cancelled" {
			t.Fatalf("call %d %s", i, got)
		}
	}
	l.send(`{"jsonrpc":"2.0","id":"last","method":"ping"}`)
	if r := l.next(); string(r.ID) != `"last"` {
		t.Errorf("a cancelled call is answered: %+v", r)
	}
}

func TestCancelMeansOneCall(t *testing.T) {
	release, ended := make(chan struct{}), make(chan string, 2)
	l := dial(t, func(ctx context.Context, n string) string {
		select {
		case <-ctx.Done():
			ended <- n
		case <-release:
		}
		return n
	})
	l.send(run(1, "one"), run(2, "two"), cancelled(2), cancelled(99),
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"1"}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled"}`)
	if n := <-ended; n != "two" {
		t.Errorf("call %s was cancelled", n)
	}
	close(release)
	if r := l.next(); string(r.ID) != "1" || r.text() != "one" {
		t.Errorf("the only reply is %+v", r)
	}
}

// What is not a request costs an error reply and nothing else.
func TestBadLines(t *testing.T) {
	long := strings.Repeat("x", shortLine)
	for name, test := range map[string]struct {
		line string
		id   string
		code int
	}{
		"words":                   {"hello", "null", mcp.PARSE_ERROR},
		"broken JSON":             {`{"jsonrpc":"2.0","id":1,"method":"ping"`, "null", mcp.PARSE_ERROR},
		"binary":                  {"\x00\xff\xfe\x01{\x80", "null", mcp.PARSE_ERROR},
		"nested without end":      {strings.Repeat("[", 100<<10), "null", mcp.PARSE_ERROR},
		"a batch":                 {"[" + ping + "]", "null", mcp.INVALID_REQUEST},
		"an empty batch":          {"[]", "null", mcp.INVALID_REQUEST},
		"a number":                {"5", "null", mcp.INVALID_REQUEST},
		"a string":                {`"ping"`, "null", mcp.INVALID_REQUEST},
		"null":                    {"null", "null", mcp.INVALID_REQUEST},
		"no version":              {`{"id":3,"method":"ping"}`, "3", mcp.INVALID_REQUEST},
		"an unknown method":       {`{"jsonrpc":"2.0","id":4,"method":"nothing/like/it"}`, "4", mcp.METHOD_NOT_FOUND},
		"an unknown tool":         {`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"walk"}}`, "5", mcp.INVALID_PARAMS},
		"too long":                {`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"` + long + `"}}`, "6", mcp.INVALID_REQUEST},
		"too long, id a string":   {`{"jsonrpc":"2.0","id":"a\"b","method":"` + long + `"}`, `"a\"b"`, mcp.INVALID_REQUEST},
		"too long, id elsewhere":  {`{"jsonrpc":"2.0","params":{"id":7,"x":"` + long + `"},"id":8}`, "null", mcp.INVALID_REQUEST},
		"too long, id an object":  {`{"jsonrpc":"2.0","id":{"a":1},"x":"` + long + `"}`, "null", mcp.INVALID_REQUEST},
		"too long, in its id":     {`{"jsonrpc":"2.0","id":"` + long + `"}`, "null", mcp.INVALID_REQUEST},
		"too long and not JSON":   {long + long, "null", mcp.INVALID_REQUEST},
		"a call that is not JSON": {`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{`, "null", mcp.PARSE_ERROR},
	} {
		t.Run(name, func(t *testing.T) {
			l := dial(t, echo)
			l.send(test.line)
			r := l.next()
			if r.Error == nil || r.Error.Code != test.code || string(r.ID) != test.id {
				t.Errorf("reply %+v, want id %s and error %d", r, test.id, test.code)
			}
			l.send(ping)
			if r := l.next(); string(r.ID) != `"ping"` || r.Error != nil {
				t.Errorf("after it: %+v", r)
			}
		})
	}
}

// An answer has its request's id to the last digit: a client finds no other.
func TestLongIDs(t *testing.T) {
	l := dial(t, echo)
	for _, id := range []string{"9007199254740993", "-9223372036854775808", "18446744073709551615", "7", `"9007199254740993"`} {
		for _, request := range []string{`"method":"ping"`, `"method":"nothing/like/it"`, `"method":"tools/call","params":{"name":"run"}`} {
			l.send(`{"jsonrpc":"2.0","id":` + id + `,` + request + `}`)
			if r := l.next(); string(r.ID) != id {
				t.Errorf("%s was answered with id %s, want %s", request, r.ID, id)
			}
		}
	}
}

func TestLines(t *testing.T) {
	for name, input := range map[string]string{
		"no newline at the end": ping,
		"windows":               ping + "\r\n",
		"empty lines":           "\n \n\r\n" + ping + "\n\n",
		"spaces":                "  \t" + ping + "  \n",
	} {
		t.Run(name, func(t *testing.T) {
			l := dial(t, echo)
			l.raw([]byte(input))
			l.in.Close()
			if r := l.next(); string(r.ID) != `"ping"` || r.Error != nil {
				t.Errorf("reply %+v", r)
			}
			if err := l.wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The longest line is taken, one byte more is not.
func TestLongestLine(t *testing.T) {
	l := dial(t, func(_ context.Context, n string) string { return fmt.Sprint(len(n)) })
	longest := shortLine - 1 - len(run(1, ""))
	l.send(run(1, strings.Repeat("x", longest)))
	if r := l.next(); r.text() != fmt.Sprint(longest) {
		t.Errorf("the longest line: %+v", r)
	}
	l.send(run(1, strings.Repeat("x", longest+1)))
	if r := l.next(); r.Error == nil || string(r.ID) != "1" {
		t.Errorf("one byte more: %+v", r)
	}
}

// mcp-go takes the last of two fields of one name and any case of it; what
// decides which goroutine answers must do the same, or a call could stop the
// loop that reads.
func TestAmbiguousMethod(t *testing.T) {
	release := make(chan struct{})
	l := dial(t, func(_ context.Context, n string) string { <-release; return n })
	l.send(
		`{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"run","arguments":{"env":"e","code":"a"}}}`,
		`{"jsonrpc":"2.0","id":2,"METHOD":"tools/call","params":{"name":"run","arguments":{"env":"e","code":"b"}}}`,
		ping)
	if r := l.next(); string(r.ID) != `"ping"` {
		t.Errorf("first reply %+v", r)
	}
	close(release)
	l.next()
	l.next()
}

func TestPanic(t *testing.T) {
	l := dial(t, func(context.Context, string) string { panic("a test") })
	l.send(run(1, "x"), ping)
	var got []string
	for range 2 {
		r := l.next()
		if string(r.ID) == "1" && (r.Error == nil || r.Error.Code != mcp.INTERNAL_ERROR) {
			t.Errorf("reply %+v", r)
		}
		got = append(got, string(r.ID))
	}
	if len(got) != 2 {
		t.Errorf("replies to %v", got)
	}
}

// At the bound of concurrent calls the server refuses further calls at once and
// continues to read.
func TestBusy(t *testing.T) {
	for name, arg := range map[string]struct {
		size, calls int
	}{"by number": {1, fewCalls}, "by size": {shortLine - 1000, fewBytes / (shortLine - 1000)}} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			l := dial(t, func(context.Context, string) string { <-release; return "ran" })
			text := strings.Repeat("x", arg.size)
			for i := range arg.calls {
				l.send(run(i, text))
			}
			l.send(run(5000, text), ping)
			if r := l.next(); string(r.ID) != "5000" || r.Result["isError"] != true || !strings.Contains(r.text(), "the server is busy") {
				t.Errorf("reply %+v", r)
			}
			if r := l.next(); string(r.ID) != `"ping"` {
				t.Errorf("reply %+v", r)
			}
			close(release)
			for range arg.calls {
				if r := l.next(); r.text() != "ran" {
					t.Fatalf("reply %+v", r)
				}
			}
			l.send(run(5001, text))
			if r := l.next(); r.text() != "ran" {
				t.Errorf("after it: %+v", r)
			}
		})
	}
}

// What has been answered is forgotten, whatever the client does.
func TestAnsweredAreForgotten(t *testing.T) {
	l := dial(t, echo)
	for i := range 10 {
		l.send(run(i, "x"))
		l.next()
	}
	l.in.Close()
	must.Do(t, l.wait())
	if u := l.under; len(u.cancels) != 0 || len(u.listening) != 0 {
		t.Errorf("%d requests are known, %d subscriptions", len(u.cancels), len(u.listening))
	}
}

// A client that is gone ends what runs.
func TestWriteFails(t *testing.T) {
	ended := make(chan struct{})
	h, _ := handler(func(ctx context.Context, _ string) string {
		<-ctx.Done()
		close(ended)
		return ""
	}, &recorder{})
	in, write := io.Pipe()
	defer write.Close()
	out, gone := io.Pipe()
	out.Close()
	served := make(chan error, 1)
	go func() { served <- New(h, func() {}).Serve(t.Context(), in, gone) }()
	fmt.Fprintln(write, run(1, ""))
	fmt.Fprintln(write, ping)
	<-ended
	if err := <-served; !errors.Is(err, io.ErrClosedPipe) || !strings.Contains(err.Error(), "write to the client") {
		t.Errorf("served: %v", err)
	}
}

func TestReadFails(t *testing.T) {
	l := dial(t, echo)
	broken := errors.New("broken")
	l.in.CloseWithError(broken)
	if err := l.wait(); !errors.Is(err, broken) {
		t.Errorf("served: %v", err)
	}
}

// The end of the context cancels what runs, and is no error.
func TestContextEnds(t *testing.T) {
	begun := make(chan struct{})
	l := dial(t, func(ctx context.Context, _ string) string {
		close(begun)
		<-ctx.Done()
		return "cancelled"
	})
	l.send(run(1, "x"))
	<-begun
	l.cancel()
	if r := l.next(); r.text() != "cancelled" {
		t.Errorf("reply %+v", r)
	}
	if err := l.wait(); err != nil {
		t.Errorf("served: %v", err)
	}
}

const stateless = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

func listen(id int, filter string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscriptions/listen","params":{%s,"notifications":%s}}`, id, stateless, filter)
}

// A subscription keeps neither the loop nor the end of input waiting.
func TestSubscription(t *testing.T) {
	l := dial(t, echo)
	l.send(listen(1, `{"toolsListChanged":true}`), ping)
	var acknowledged, ponged bool
	for range 2 {
		r := l.next()
		acknowledged = acknowledged || r.Method == mcp.MethodNotificationSubscriptionsAcknowledged
		ponged = ponged || string(r.ID) == `"ping"`
	}
	if !acknowledged || !ponged {
		t.Fatalf("acknowledged %v, ping answered %v", acknowledged, ponged)
	}
	l.change()
	if r := l.next(); r.Method != mcp.MethodNotificationToolsListChanged {
		t.Errorf("the change arrived as %+v", r)
	}
	l.in.Close()
	if r := l.next(); string(r.ID) != "1" || r.Error != nil {
		t.Errorf("the subscription ended with %+v", r)
	}
	if err := l.wait(); err != nil {
		t.Error(err)
	}
}

func TestSubscriptionCancelled(t *testing.T) {
	l := dial(t, echo)
	l.send(listen(1, `{"toolsListChanged":true}`))
	l.next()
	l.send(cancelled(1))
	if r := l.next(); string(r.ID) != "1" {
		t.Errorf("reply %+v", r)
	}
}

func TestSubscriptionsAreBounded(t *testing.T) {
	l := dial(t, echo)
	for i := range fewListens {
		l.send(listen(i, `{"toolsListChanged":true}`))
		l.next()
	}
	l.send(listen(99, `{"toolsListChanged":true}`))
	if r := l.next(); string(r.ID) != "99" || r.Error == nil {
		t.Errorf("reply %+v", r)
	}
	// One that has ended frees its slot, soon after its reply.
	l.send(cancelled(0))
	if r := l.next(); string(r.ID) != "0" {
		t.Errorf("reply %+v", r)
	}
	for end := time.Now().Add(patience.Long); ; {
		l.send(listen(100, `{"toolsListChanged":true}`))
		if r := l.next(); r.Error == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a subscription that has ended still counts")
		}
	}
}

// A client that sent initialize is notified of changes, a stateless client only
// if it subscribed to them.
func TestChangedLists(t *testing.T) {
	l := dial(t, echo)
	l.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + stateless + `}}`)
	l.next()
	l.change()
	l.send(ping)
	if r := l.next(); string(r.ID) != `"ping"` {
		t.Errorf("a stateless client got %+v", r)
	}

	l = dial(t, echo)
	l.send(initialize("2024-11-05"))
	l.next()
	l.change()
	if r := l.next(); r.Method != mcp.MethodNotificationToolsListChanged {
		t.Errorf("a client that initialized got %+v", r)
	}
}

// However input is cut into lines and whatever they hold, the server lives,
// and each line gets at most one reply.
func FuzzInput(f *testing.F) {
	f.Add([]byte(ping + "\n" + run(1, "a") + "\n[]\n"))
	f.Add([]byte(listen(1, "{}") + "\n" + cancelled(1)))
	f.Add([]byte(`{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{"name":"run","arguments":[]}}`))
	f.Fuzz(func(t *testing.T, input []byte) {
		var out bytes.Buffer
		h, _ := handler(echo, &recorder{})
		err := New(h, func() {}).Serve(t.Context(), bytes.NewReader(input), &out)
		if err != nil {
			t.Errorf("served: %v", err)
		}
		replies := 0
		for text := range bytes.Lines(out.Bytes()) {
			var r reply
			if err := json.Unmarshal(text, &r); err != nil {
				t.Errorf("wrote %q", text)
			}
			if r.Method == "" {
				replies++
			}
		}
		if lines := bytes.Count(input, []byte("\n")) + 1; replies > lines {
			t.Errorf("%d replies to %d lines", replies, lines)
		}
	})
}

func BenchmarkCall(b *testing.B) {
	h, _ := handler(func(context.Context, string) string { return "2\n" }, &recorder{})
	in, write := io.Pipe()
	read, out := io.Pipe()
	go New(h, func() {}).Serve(b.Context(), in, out)
	lines := bufio.NewReader(read)
	text := []byte(run(1, "print(1+1)") + "\n")
	for b.Loop() {
		write.Write(text)
		if _, err := lines.ReadSlice('\n'); err != nil {
			b.Fatal(err)
		}
	}
	write.Close()
}

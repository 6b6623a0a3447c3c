package mcphttp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// recorder has the reasons of calls that were refused, of each principal.
type recorder struct {
	mu      sync.Mutex
	reasons map[string][]string
}

func (r *recorder) Begin(c call.Call) (end func(call.Result, error)) {
	return func(_ call.Result, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.reasons == nil {
			r.reasons = map[string][]string{}
		}
		r.reasons[c.Principal] = append(r.reasons[c.Principal], fmt.Sprint(c.Code, ": ", err))
	}
}

// named takes the token of a request for the name of its principal.
type named struct{}

func (named) Authenticate(r *http.Request) (string, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case !ok:
		return "", principal.ErrNone
	case strings.HasPrefix(token, "bad"):
		return "", &principal.Refusal{Reason: "the token is not known"}
	}
	return token, nil
}

// served is a Server on a port of this machine, whose sandboxes this process simulates.
type served struct {
	*Server
	url          string
	transport    *http.Transport
	machine      *sandboxtest.Machine
	environments *registry.Registry
	observed     chan Request
	refusals     recorder
}

// pipes is a listener whose connections are pipes. A bubble of testing/synctest knows what
// waits for a pipe, and not what waits for a socket.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func environment(name string) registry.Environment {
	return registry.Environment{Name: name, Language: &registry.Language{Sessions: true}, SessionExec: "/session-run", Timeout: time.Minute, MaxTimeout: time.Hour, OutputBytes: 16 << 20}
}

// asking asks the user before a call whose code begins with "# ask".
type asking struct{ call.Executor }

func (a asking) Answer(ctx context.Context, c call.Call) (call.Result, error) {
	if strings.HasPrefix(c.Code, "# ask") {
		q := call.Question{Text: "?", Choices: []call.Labelled{{Choice: call.Once, Label: "once"}}, Until: time.Now().Add(patience.Long)}
		if choice, err := c.Client.Put(ctx, q); err != nil || choice != call.Once {
			return call.Result{}, fmt.Errorf("the user chose %q, %v", choice, err)
		}
	}
	return a.Executor.Answer(ctx, c)
}

// start starts a Server on a port of this machine.
func start(t testing.TB, change func(*Options)) *served {
	t.Helper()
	return serve(t, must.Get(net.Listen("tcp", "127.0.0.1:0"))(t), &http.Transport{}, change)
}

// book has the accounts of principals with so many streams.
func book(streams int) *account.Book {
	return account.NewBook(func(string) registry.Quota {
		return registry.Quota{Calls: 1 << 20, Sessions: 1 << 20, Streams: streams, MemoryMB: 1 << 20}
	}, 1<<20)
}

// startInBubble starts a Server in a bubble of testing/synctest, to which pipes lead.
func startInBubble(t testing.TB, change func(*Options)) *served {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	return serve(t, p, &http.Transport{DialContext: p.DialContext}, change)
}

func serve(t testing.TB, listener net.Listener, transport *http.Transport, change func(*Options)) *served {
	t.Helper()
	set := &registry.Set{Environments: map[string]registry.Environment{"bash": environment("bash")}}
	log := slog.New(slog.DiscardHandler)
	s := &served{machine: &sandboxtest.Machine{}, environments: registry.New(set), observed: make(chan Request, 1<<16)}
	spec := func(c call.Call) sandbox.Spec { return sandbox.Spec{Name: c.Env.Name, OutputBytes: c.Env.OutputBytes} }
	manager := session.New(session.Options{Starter: s.machine, Spec: spec, OneShot: session.OneShot(s.machine, spec, nil), Limits: session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: 1000}, Log: log})
	handler, stop := rpc.New(tool.New(tool.Options{Environments: s.environments, Executor: asking{manager}, Sessions: manager, Observers: []call.Observer{&s.refusals}, Log: log}), "1", rpc.DefaultBounds(), log)
	o := Options{Authenticator: named{}, Book: book(1 << 20), Log: log, DrainTimeout: patience.Long, Observe: func(r Request) { s.observed <- r }}
	if change != nil {
		change(&o)
	}
	s.Server = New(handler, o)
	s.url = "http://" + listener.Addr().String()
	s.transport = transport
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(listener) }()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		manager.Close()
		s.machine.Close(0)
		s.Close(0)
		must.Do(t, <-ended)
		stop()
	})
	return s
}

// client returns a client of a principal that has begun.
func (s *served) client(t testing.TB, token, version string) *httpclient.Client {
	t.Helper()
	c := &httpclient.Client{URL: s.url + Path, Token: token, Version: version, HTTP: &http.Client{Transport: s.transport.Clone()}}
	t.Cleanup(c.HTTP.CloseIdleConnections)
	must.Do(t, c.Initialize(t.Context()))
	return c
}

// eras are a version of each.
var eras = []string{mcpclient.Newest, mcpclient.Stateless}

func forEras(t *testing.T, test func(*testing.T, string)) {
	for _, version := range eras {
		t.Run(version, func(t *testing.T) { test(t, version) })
	}
}

// forErasInBubble is for tests in which time has to pass.
func forErasInBubble(t *testing.T, test func(*testing.T, string)) {
	forEras(t, func(t *testing.T, version string) {
		synctest.Test(t, func(t *testing.T) { test(t, version) })
	})
}

func run(t testing.TB, c *httpclient.Client, session, code string) string {
	t.Helper()
	answer := must.Get(c.Run(t.Context(), mcpclient.Arguments{Env: "bash", Session: session, Code: code}))(t)
	return answer.Text()
}

// status sends a request and returns its response's status, head and body.
func (s *served) send(t testing.TB, method, path, body string, header map[string]string) (int, http.Header, string) {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body)))(t)
	for name, value := range header {
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Set(name, value)
		}
	}
	response := must.Get(s.transport.RoundTrip(r))(t)
	defer response.Body.Close()
	text := must.Get(io.ReadAll(response.Body))(t)
	return response.StatusCode, response.Header, string(text)
}

func TestServer_AnswersBothEras(t *testing.T) {
	s := start(t, nil)
	forEras(t, func(t *testing.T, version string) {
		c := s.client(t, "alice", version)
		if got := run(t, c, "s-"+version, "X=5; echo $X"); got != "5\n" {
			t.Errorf("answer %q", got)
		}
		// Another HTTP session of the same principal finds the state.
		if got := run(t, s.client(t, "alice", version), "s-"+version, "echo $X"); got != "5\n" {
			t.Errorf("from another client: %q", got)
		}
		reply := must.Get(c.CallAs(t.Context(), json.RawMessage("9007199254740993"), "tools/list", nil, nil))(t)
		if string(reply.ID) != "9007199254740993" || !strings.Contains(string(reply.Result), `"name":"run"`) {
			t.Errorf("reply %s", reply.Line)
		}
		long := strings.Repeat("# a line\n", 1<<17)
		if got := run(t, c, "", long+"echo end"); got != "end\n" {
			t.Errorf("a megabyte of code: %q", got)
		}
	})
}

func TestServer_RefusesStrangers(t *testing.T) {
	s := start(t, func(o *Options) {
		o.Hosts, o.Origins = []string{"sandbox.example"}, []string{"https://page.example"}
		o.Resource = "https://sandbox.example/mcp"
	})
	const ping = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	good := map[string]string{"Content-Type": "application/json", "Authorization": "Bearer alice"}
	with := func(name, value string) map[string]string {
		header := map[string]string{name: value}
		for name, value := range good {
			if _, given := header[name]; !given {
				header[name] = value
			}
		}
		return header
	}
	for name, test := range map[string]struct {
		header map[string]string
		status int
	}{
		"good":             {good, 200},
		"own page":         {with("Origin", "http://localhost:3000"), 200},
		"listed page":      {with("Origin", "https://page.example"), 200},
		"listed host":      {with("Host", "Sandbox.Example:443"), 200},
		"strange page":     {with("Origin", "http://evil.example"), 403},
		"null":             {with("Origin", "null"), 403},
		"strange host":     {with("Host", "evil.example"), 403},
		"own page to name": {map[string]string{"Host": "sandbox.example", "Origin": "http://localhost", "Authorization": "Bearer alice"}, 403},
		"no token":         {map[string]string{"Content-Type": "application/json"}, 401},
		"bad token":        {with("Authorization", "Bearer bad"), 401},
		"no type":          {with("Content-Type", "text/plain"), 415},
	} {
		status, header, body := s.send(t, http.MethodPost, Path, ping, test.header)
		if status != test.status {
			t.Errorf("%s: status %d, want %d: %s", name, status, test.status, body)
		}
		if challenge := header.Get("WWW-Authenticate"); (status == 401) != strings.Contains(challenge, `resource_metadata="https://sandbox.example/.well-known/oauth-protected-resource/mcp"`) {
			t.Errorf("%s: WWW-Authenticate %q", name, challenge)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		if status, header, _ := s.send(t, method, Path, "", nil); status != 401 || !strings.HasPrefix(header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s without a token: status %d, WWW-Authenticate %q", method, status, header.Get("WWW-Authenticate"))
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, _, _ := s.send(t, http.MethodGet, path, "", nil); status != 200 {
			t.Errorf("%s: status %d", path, status)
		}
	}
	// A URL without the path is a mistake that people make.
	for _, path := range []string{"/", Path + "/", "/sse"} {
		if status, _, body := s.send(t, http.MethodPost, path, "{}", good); status != 404 || !strings.Contains(body, "MCP is served at "+Path) {
			t.Errorf("%s: status %d, %s", path, status, body)
		}
	}
	if status, header, _ := s.send(t, http.MethodOptions, Path, "", map[string]string{"Origin": "https://page.example"}); status != 204 || header.Get("Access-Control-Allow-Origin") != "https://page.example" {
		t.Errorf("preflight: status %d, head %v", status, header)
	}
}

func TestServer_RefusesWhatTheErasRefuse(t *testing.T) {
	s := start(t, nil)
	const modern = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	session := s.client(t, "alice", mcpclient.Newest).Session()
	type head = map[string]string
	for name, test := range map[string]struct {
		method, body string
		header       head
		status       int
		part         string
	}{
		"not JSON":                    {body: `{`, status: 400, part: `-32700`},
		"empty":                       {body: ``, status: 400, part: `-32700`},
		"compressed":                  {body: "\x1f\x8b", header: head{"Content-Encoding": "gzip"}, status: 415, part: `Content-Encoding is \"gzip\"`},
		"batch":                       {body: `[]`, status: 400, part: `-32600`},
		"legacy without a session":    {body: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, status: 400, part: `"id":1`},
		"legacy of an unknown one":    {body: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, header: head{"Mcp-Session-Id": "x"}, status: 404},
		"legacy of an unknown method": {body: `{"jsonrpc":"2.0","id":1,"method":"walk"}`, header: head{"Mcp-Session-Id": session}, status: 200, part: `-32601`},
		"unknown old version":         {body: `{"jsonrpc":"2.0","id":1,"method":"ping"}`, header: head{"Mcp-Session-Id": session, "Mcp-Protocol-Version": "1999-01-01"}, status: 400},
		"legacy notification":         {body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`, header: head{"Mcp-Session-Id": session}, status: 202},
		"legacy reply":                {body: `{"jsonrpc":"2.0","id":7,"result":{}}`, header: head{"Mcp-Session-Id": session}, status: 202},
		"GET of an unknown one":       {method: http.MethodGet, header: head{"Mcp-Session-Id": "x"}, status: 404},
		"GET without":                 {method: http.MethodGet, status: 400},
		"GET of JSON":                 {method: http.MethodGet, header: head{"Accept": "application/json"}, status: 406},
		"legacy of a changed one":     {body: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, header: head{"Mcp-Session-Id": session[:randomSize] + formsMark + session[randomSize+1:]}, status: 404},
		"legacy of a longer one":      {body: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, header: head{"Mcp-Session-Id": session + "0"}, status: 404},
		"DELETE":                      {method: http.MethodDelete, header: head{"Mcp-Session-Id": session}, status: 405},
		"PUT":                         {method: http.MethodPut, status: 405},
		"modern GET":                  {method: http.MethodGet, header: head{"Mcp-Protocol-Version": "2026-07-28"}, status: 405},
		"modern DELETE":               {method: http.MethodDelete, header: head{"Mcp-Protocol-Version": "2026-07-28"}, status: 405},
		"modern":                      {body: `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + modern + `}}`, header: head{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}, status: 200},
		"modern without the field":    {body: `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + modern + `}}`, header: head{"Mcp-Method": "tools/list"}, status: 400, part: `-32020`},
		"modern without _meta":        {body: `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`, header: head{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}, status: 400, part: `-32602`},
		"future":                      {body: `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`, header: head{"Mcp-Protocol-Version": "2027-01-01", "Mcp-Method": "tools/list"}, status: 400, part: `-32022`},
		"modern of another method":    {body: `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + modern + `}}`, header: head{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "ping"}, status: 400, part: `-32020`},
		"modern of another name":      {body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run",` + modern + `}}`, header: head{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "walk"}, status: 400, part: `-32020`},
		"modern of an unknown method": {body: `{"jsonrpc":"2.0","id":1,"method":"walk","params":{` + modern + `}}`, header: head{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "walk"}, status: 404, part: `-32601`},
		"modern notification":         {body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{` + modern + `}}`, header: head{"Mcp-Protocol-Version": "2026-07-28"}, status: 202},
	} {
		if test.method == "" {
			test.method = http.MethodPost
		}
		header := head{"Content-Type": "application/json", "Authorization": "Bearer alice"}
		for name, value := range test.header {
			header[name] = value
		}
		if status, _, body := s.send(t, test.method, Path, test.body, header); status != test.status || !strings.Contains(body, test.part) {
			t.Errorf("%s: status %d, want %d and %s: %s", name, status, test.status, test.part, body)
		}
	}
	for version, want := range map[string]string{"2025-11-25": "GET, POST", "2026-07-28": "POST"} {
		if _, header, _ := s.send(t, http.MethodPut, Path, "", head{"Authorization": "Bearer alice", "Mcp-Protocol-Version": version}); header.Get("Allow") != want {
			t.Errorf("%s allows %q, want %q", version, header.Get("Allow"), want)
		}
	}
	if status, _, _ := s.send(t, http.MethodPost, Path, strings.Repeat(" ", maxBody+1), head{"Content-Type": "application/json", "Authorization": "Bearer alice"}); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too long: status %d", status)
	}
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("%d bytes are counted at the end", s.o.Book.Bytes.Used()) }, func() bool { return s.o.Book.Bytes.Used() == 0 })
}

// The metadata of the resource is where the challenge says, also if a proxy serves it at another path.
func TestServer_AnswersWhereItsChallengePoints(t *testing.T) {
	for _, resource := range []string{"https://sandbox.example/mcp", "https://sandbox.example:8443/team/mcp", "https://sandbox.example/a%20b/", "https://sandbox.example"} {
		s := start(t, func(o *Options) {
			o.Resource = resource
			o.Metadata = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "metadata") })
		})
		_, header, _ := s.send(t, http.MethodPost, Path, "{}", nil)
		_, at, _ := strings.Cut(header.Get("WWW-Authenticate"), `resource_metadata="`)
		named := must.Get(url.Parse(strings.TrimSuffix(at, `"`)))(t)
		if status, _, body := s.send(t, http.MethodGet, named.EscapedPath(), "", nil); status != 200 || body != "metadata" {
			t.Errorf("%s: %s: status %d: %s", resource, named, status, body)
		}
		if status, _, _ := s.send(t, http.MethodGet, wellKnown+"/other", "", nil); status != 404 {
			t.Errorf("%s: another path: status %d", resource, status)
		}
	}
}

// Progress of a call comes in its own response, whatever else its client and others have
// open: one GET or subscription of each of two principals in each era.
func TestServer_NotifiesInTheRightResponse(t *testing.T) {
	forErasInBubble(t, func(t *testing.T, version string) {
		s := startInBubble(t, nil)
		c := s.client(t, "alice", version)
		var reading sync.WaitGroup
		listen := func(name string, response *http.Response) {
			reading.Go(func() {
				defer response.Body.Close()
				for m, err := range httpclient.Events(response.Body) {
					isResult := len(m.ID) > 0 && len(m.Result) > 0
					if err != nil || m.Method != "notifications/subscriptions/acknowledged" && !isResult {
						t.Errorf("the stream of %s has %s (%v)", name, m.Line, err)
					}
				}
			})
		}
		for _, one := range []*httpclient.Client{c, s.client(t, "alice", version), s.client(t, "bob", version)} {
			if one.IsStateless() {
				message := must.Get(one.Message("sub", "subscriptions/listen", map[string]any{"notifications": map[string]any{"toolsListChanged": true}}))(t)
				listen(one.Token, must.Get(one.Post(t.Context(), "subscriptions/listen", "", message))(t))
			} else {
				listen(one.Token, must.Get(one.Do(must.Get(one.Request(t.Context(), http.MethodGet, nil))(t)))(t))
			}
		}
		// Calls at once: many, and a hundred times two.
		for round, atOnce := range append([]int{50}, slices.Repeat([]int{2}, 100)...) {
			var calls sync.WaitGroup
			for i := range atOnce {
				calls.Go(func() {
					token := fmt.Sprintf("%s-%d-%d", version, round, i)
					count := 0
					answer, err := c.RunWith(t.Context(), mcpclient.Arguments{Env: "bash", Code: fmt.Sprintf("echo %d; sleep 4.5", i)}, map[string]any{"progressToken": token}, func(m mcpclient.Message) {
						count++
						var params struct {
							ProgressToken, Message string
						}
						if err := json.Unmarshal(m.Params, &params); err != nil || params.ProgressToken != token || !strings.HasSuffix(params.Message, fmt.Sprint(i)) {
							t.Errorf("call %s was notified of %s (%v)", token, m.Line, err)
						}
					})
					if err != nil || answer.Text() != fmt.Sprintf("%d\n", i) || count != 1 {
						t.Errorf("call %s: %q, %d notifications, %v", token, answer.Text(), count, err)
					}
				})
			}
			calls.Wait()
		}
		// What ends the streams comes after all that could have been notified.
		s.Drain(t.Context())
		reading.Wait()
	})
}

// sleeping begins a call that sleeps, and returns when its session's turn is taken.
func sleeping(t testing.TB, s *served, c *httpclient.Client, id int, session string) (cancel context.CancelFunc, done chan mcpclient.Message) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done = make(chan mcpclient.Message, 1)
	before := s.machine.Running()
	go func() {
		m, _ := c.CallAs(ctx, id, "tools/call", map[string]any{"name": "run", "arguments": mcpclient.Arguments{Env: "bash", Session: session, Code: "sleep 3000"}}, nil)
		done <- m
	}()
	patience.Wait(t, patience.Long, func() string { return "the call does not run" }, func() bool { return s.machine.Running() > before })
	return cancel, done
}

// A client that hangs up cancels in the revision without a handshake, and not before.
// Neither a hang-up nor a cancellation reaches the call of another client.
func TestServer_CancelsTheRightCall(t *testing.T) {
	s := start(t, nil)
	forEras(t, func(t *testing.T, version string) {
		alice, bob := s.client(t, "alice", version), s.client(t, "bob", version)
		hangUp, done := sleeping(t, s, alice, 5, "a")
		stopBob, bobDone := sleeping(t, s, bob, 5, "a")
		defer stopBob()
		if version == mcpclient.Newest {
			must.Do(t, bob.Notify(t.Context(), "notifications/cancelled", map[string]any{"requestId": 99}))
			hangUp()
			<-done
			// The call goes on: the session is busy until it is cancelled.
			again := s.client(t, "alice", version)
			must.Do(t, again.Notify(t.Context(), "notifications/cancelled", map[string]any{"requestId": 5}))
			if s.machine.Running() != 2 {
				t.Error("a hang-up or another session's notification ended a call")
			}
			must.Do(t, alice.Notify(t.Context(), "notifications/cancelled", map[string]any{"requestId": 5}))
		} else {
			must.Do(t, alice.Notify(t.Context(), "notifications/cancelled", map[string]any{"requestId": 5}))
			hangUp()
			<-done
		}
		patience.Wait(t, patience.Long, func() string { return "alice's call does not end" }, func() bool { return s.machine.Running() == 1 })
		if got := run(t, alice, "a", "echo there"); !strings.HasSuffix(got, "there\n") {
			t.Errorf("after it: %q", got)
		}
		if s.machine.Running() != 1 {
			t.Error("bob's call has ended")
		}
		stopBob()
		<-bobDone
		if version == mcpclient.Newest {
			must.Do(t, bob.Notify(t.Context(), "notifications/cancelled", map[string]any{"requestId": 5}))
		}
		patience.Wait(t, patience.Long, func() string { return "bob's call does not end" }, func() bool { return s.machine.Running() == 0 })
	})
}

// An HTTP session is worth nothing to another principal, and neither is the name of a
// session.
func TestServer_KeepsPrincipalsApart(t *testing.T) {
	s := start(t, nil)
	alice, bob := s.client(t, "alice", mcpclient.Newest), s.client(t, "bob", mcpclient.Newest)
	if got := run(t, alice, "s", "X=secret; echo file >outputs/f"); !strings.Contains(got, "no output") {
		t.Errorf("answer %q", got)
	}
	if got := run(t, bob, "s", "echo [$X]"); got != "[]\n" {
		t.Errorf("bob's session has %q", got)
	}
	read := func(c *httpclient.Client, name string) string {
		reply, err := c.Call(t.Context(), "resources/read", map[string]any{"uri": "sandbox://" + name + "/outputs/f"}, nil)
		if err != nil {
			return strings.ReplaceAll(err.Error(), name, "NAME")
		}
		return string(reply.Result)
	}
	if got := read(alice, "s"); !strings.Contains(got, `"text":"file\n"`) {
		t.Errorf("alice reads %s", got)
	}
	run(t, alice, "only", "echo file >outputs/f")
	if other, none := read(bob, "only"), read(bob, "none"); other != none || !strings.Contains(none, "there is no session") {
		t.Errorf("bob learns of alice's session: %q and not %q", other, none)
	}
	// What mcp-go answers is the principal's as well.
	reply := must.Get(bob.Call(t.Context(), "tools/call", map[string]any{"task": map[string]any{}, "name": "run", "arguments": mcpclient.Arguments{Env: "bash", Session: "only", Code: "cat outputs/f"}}, nil))(t)
	if strings.Contains(string(reply.Result), `"file\n"`) {
		t.Errorf("bob reads alice's file: %s", reply.Result)
	}
	stolen := s.client(t, "bob", mcpclient.Newest)
	stolen.SetSession(alice.Session())
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		header := map[string]string{"Authorization": "Bearer bob", "Mcp-Session-Id": alice.Session(), "Content-Type": "application/json"}
		status, _, body := s.send(t, method, Path, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, header)
		header["Mcp-Session-Id"] = "none"
		if otherStatus, _, other := s.send(t, method, Path, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, header); status != 404 || otherStatus != 404 || body != other {
			t.Errorf("%s: alice's session %d %s, none %d %s", method, status, body, otherStatus, other)
		}
	}
	if got := run(t, alice, "s", "echo $X"); got != "secret\n" {
		t.Errorf("alice's session has %q", got)
	}
}

// Clients with a stream hear of a change, each once; a client without gets JSON.
func TestServer_TellsOfChanges(t *testing.T) {
	s := start(t, nil)
	legacy, modern, quiet := s.client(t, "alice", mcpclient.Newest), s.client(t, "bob", mcpclient.Stateless), s.client(t, "carol", mcpclient.Newest)
	notes := make(chan mcpclient.Message, 16)
	listen := func(response *http.Response) {
		t.Cleanup(func() { response.Body.Close() })
		go func() {
			for m, err := range httpclient.Events(response.Body) {
				if err != nil {
					return
				}
				notes <- m
			}
		}()
	}
	listen(must.Get(legacy.Do(must.Get(legacy.Request(t.Context(), http.MethodGet, nil))(t)))(t))
	subscribe := must.Get(modern.Message("sub", "subscriptions/listen", map[string]any{"notifications": map[string]any{"toolsListChanged": true}}))(t)
	listen(must.Get(modern.Post(t.Context(), "subscriptions/listen", "", subscribe))(t))
	if m := <-notes; m.Method != "notifications/subscriptions/acknowledged" || !strings.Contains(string(m.Line), `"io.modelcontextprotocol/subscriptionId":"sub"`) {
		t.Fatalf("first notification %s", m.Line)
	}
	set := &registry.Set{Environments: map[string]registry.Environment{"bash": environment("bash"), "lua": environment("lua")}}
	s.environments.Publish(set)
	heard := []string{string((<-notes).Line), string((<-notes).Line)}
	slices.Sort(heard)
	want := []string{
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"sub"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
	}
	if !slices.Equal(heard, want) {
		t.Errorf("heard %q", heard)
	}
	message := must.Get(quiet.Message(1, "tools/list", nil))(t)
	response := must.Get(quiet.Post(t.Context(), "tools/list", "", message))(t)
	defer response.Body.Close()
	if kind := response.Header.Get("Content-Type"); kind != "application/json" {
		t.Errorf("a plain request is answered with %s", kind)
	}
	// A drain ends both, and the subscription with its result.
	s.Drain(t.Context())
	if m := <-notes; string(m.ID) != `"sub"` || len(m.Result) == 0 {
		t.Errorf("the subscription ends with %s", m.Line)
	}
}

// A server that drains answers what it has begun, and refuses what comes.
func TestServer_Drains(t *testing.T) { synctest.Test(t, drains) }

func drains(t *testing.T) {
	s := startInBubble(t, func(o *Options) { o.LameDuck = time.Millisecond })
	began := time.Now()
	startInBubble(t, func(o *Options) { o.LameDuck = time.Hour }).Drain(t.Context())
	if took := time.Since(began); took > time.Minute {
		t.Errorf("a server that nobody watches drained for %v", took)
	}
	s.send(t, http.MethodGet, "/readyz", "", nil)
	c := s.client(t, "alice", mcpclient.Newest)
	answer := make(chan string, 1)
	go func() {
		a, err := c.Run(t.Context(), mcpclient.Arguments{Env: "bash", Code: "sleep 1; echo end"})
		answer <- fmt.Sprint(a.Text(), err)
	}()
	patience.Wait(t, patience.Long, func() string { return "the call does not run" }, func() bool { return s.machine.Running() == 1 })
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.Drain(t.Context())
	}()
	patience.Wait(t, patience.Long, func() string { return "the server takes calls" }, func() bool {
		status, header, _ := s.send(t, http.MethodPost, Path, "{}", map[string]string{"Authorization": "Bearer alice", "Content-Type": "application/json"})
		return status == http.StatusServiceUnavailable && header.Get("Retry-After") != ""
	})
	if status, _, _ := s.send(t, http.MethodGet, "/readyz", "", nil); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz: status %d", status)
	}
	if status, _, _ := s.send(t, http.MethodGet, "/healthz", "", nil); status != http.StatusOK {
		t.Errorf("/healthz: status %d", status)
	}
	if got := <-answer; got != "end\n<nil>" {
		t.Errorf("the call was answered with %q", got)
	}
	<-drained
}

// HTTP sessions that nobody ends cost nothing, however many a principal begins, and stay.
func TestServer_HoldsNothingForHTTPSessions(t *testing.T) {
	s := start(t, nil)
	c := s.client(t, "alice", mcpclient.Newest)
	first := c.Session()
	for range 200 {
		must.Do(t, c.Initialize(t.Context()))
	}
	c.SetSession(first)
	if _, err := c.Call(t.Context(), "ping", nil, nil); err != nil {
		t.Errorf("the first session: %v", err)
	}
	if got := run(t, c, "", "echo 1"); got != "1\n" {
		t.Errorf("the first session: %q", got)
	}
	// A request is forgotten after its answer.
	patience.Until(t, "no request is remembered", func() bool {
		s.sessions.mu.Lock()
		defer s.sessions.mu.Unlock()
		return len(s.sessions.running) == 0
	})
}

// A principal has as many streams as its quota allows, each of an HTTP session of its own. A further
// one is refused.
func TestServer_KeepsHTTPSessionsWithStreams(t *testing.T) {
	const streams = 70
	s := start(t, func(o *Options) { o.Book = book(streams) })
	open := func() (*httpclient.Client, *http.Response) {
		c := s.client(t, "alice", mcpclient.Newest)
		response := must.Get(c.Do(must.Get(c.Request(t.Context(), http.MethodGet, nil))(t)))(t)
		t.Cleanup(func() { response.Body.Close() })
		return c, response
	}
	var clients []*httpclient.Client
	for i := range streams {
		c, response := open()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("stream %d: status %d", i+1, response.StatusCode)
		}
		clients = append(clients, c)
	}
	if _, response := open(); response.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a stream too many: status %d", response.StatusCode)
	}
	for i, c := range clients {
		if _, err := c.Call(t.Context(), "ping", nil, nil); err != nil {
			t.Errorf("the HTTP session of stream %d: %v", i+1, err)
		}
	}
}

// The memory that exchanges took is returned some time after they have ended.
func TestServer_ReturnsTheMemoryOfExchanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startInBubble(t, nil)
		for range 2 {
			if s.isReturning.Load() {
				t.Error("memory is to be returned before an exchange has ended")
			}
			s.enter()
			s.leave()
			time.Sleep(returnDelay - time.Nanosecond)
			if !s.isReturning.Load() {
				t.Error("memory is not to be returned")
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
		}
	})
}

// What clients do to their connections leaves nothing behind.
func TestServer_KeepsNothingOfBrokenClients(t *testing.T) {
	s := start(t, nil)
	base := runtime.NumGoroutine()
	for range 50 {
		conn := must.Get(net.Dial("tcp", strings.TrimPrefix(s.url, "http://")))(t)
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},"name":"run","arguments":{"env":"bash","code":"sleep 1000"}}}`
		fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\nContent-Type: application/json\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: run\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		t.Cleanup(func() { conn.Close() })
		defer func() {
			must.Do(t, conn.(*net.TCPConn).SetLinger(0))
			conn.Close()
		}()
	}
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("%d calls run", s.machine.Running()) }, func() bool { return s.machine.Running() == 50 })
	t.Cleanup(func() {
		patience.Wait(t, patience.Long, func() string {
			return fmt.Sprintf("%d calls run, %d goroutines and not %d", s.machine.Running(), runtime.NumGoroutine(), base)
		}, func() bool { return s.machine.Running() == 0 && runtime.NumGoroutine() <= base })
	})
}

// Many clients do what clients do, at once. Each principal has a secret in a session
// whose name all share, and finds it there and nobody else's; what is hung up, cancelled
// or not read reaches nobody else.
func TestServer_ManyClients(t *testing.T) {
	const clients, rounds = 200, 6
	s := start(t, func(o *Options) { o.Book = book(8) })
	source := seed.New(t)
	shared := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer shared.CloseIdleConnections()
	base := runtime.NumGoroutine()
	var all sync.WaitGroup
	for i := range clients {
		random := rand.New(rand.NewPCG(source.Uint64(), 0))
		all.Go(func() {
			name := fmt.Sprintf("p%d", i%20)
			secret := "of-" + name
			c := &httpclient.Client{URL: s.url + Path, Token: name, Version: eras[random.IntN(2)], HTTP: shared}
			if err := c.Initialize(t.Context()); err != nil {
				t.Error(err)
				return
			}
			// What is hung up has connections of its own: net/http may end one whose
			// request was given up when the next request has it already.
			hasty := &httpclient.Client{URL: c.URL, Token: name, Version: c.Version, HTTP: &http.Client{Transport: &http.Transport{}}}
			hasty.SetSession(c.Session())
			defer hasty.HTTP.CloseIdleConnections()
			for range rounds {
				switch random.IntN(6) {
				case 0: // hangs up
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(5))*time.Millisecond)
					_, _ = hasty.Run(ctx, mcpclient.Arguments{Env: "bash", Session: "main", Code: "X=" + secret + "; sleep 0.01"})
					cancel()
				case 1: // cancels
					id := c.NextID()
					done := make(chan struct{})
					go func() {
						defer close(done)
						_, _ = c.CallAs(t.Context(), id, "tools/call", map[string]any{"name": "run", "arguments": mcpclient.Arguments{Env: "bash", Code: "sleep 0.02"}}, nil)
					}()
					if err := c.Notify(t.Context(), "notifications/cancelled", map[string]any{"requestId": id}); err != nil {
						t.Error(err)
					}
					<-done
				case 2: // listens for a moment
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
					if hasty.IsStateless() {
						message, err := hasty.Message("sub", "subscriptions/listen", map[string]any{"notifications": map[string]any{"toolsListChanged": true}})
						if err != nil {
							t.Error(err)
						}
						if response, err := hasty.Post(ctx, "subscriptions/listen", "", message); err == nil {
							_, _ = io.Copy(io.Discard, response.Body)
							response.Body.Close()
						}
					} else if r, err := hasty.Request(ctx, http.MethodGet, nil); err == nil {
						if response, err := hasty.Do(r); err == nil {
							_, _ = io.Copy(io.Discard, response.Body)
							response.Body.Close()
						}
					}
					cancel()
				case 3:
					if _, err := c.Call(t.Context(), "tools/list", nil, nil); err != nil {
						t.Error(err)
					}
				default: // finds its secret
					answer, err := c.Run(t.Context(), mcpclient.Arguments{Env: "bash", Session: "main", Code: "X=" + secret + "; echo $X"})
					if err != nil || !strings.HasPrefix(answer.Text(), secret+"\n") {
						t.Errorf("%s: %q, %v", name, answer.Text(), err)
					}
					answer, err = c.Run(t.Context(), mcpclient.Arguments{Env: "bash", Session: "main", Code: "echo $X"})
					if err != nil || answer.Text() != secret+"\n" {
						t.Errorf("%s: %q, %v", name, answer.Text(), err)
					}
				}
			}
		})
	}
	all.Wait()
	shared.CloseIdleConnections()
	patience.Wait(t, patience.Long, func() string {
		return fmt.Sprintf("%d goroutines and not %d, %d calls run, %d streams", runtime.NumGoroutine(), base, s.machine.Running(), s.o.Book.Streams.Used())
	}, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return runtime.NumGoroutine() <= base+2 && s.machine.Running() == 0 && s.o.Book.Streams.Used() == 0 && s.exchanges == 0
	})
	// The charges of calls that were hung up end with these.
	patience.Wait(t, patience.Long, func() string {
		return fmt.Sprintf("%d bytes and %d bytes of answers are charged at the end", s.o.Book.Bytes.Used(), s.answers.Used())
	}, func() bool { return s.o.Book.Bytes.Used()+s.answers.Used() == 0 })
}

// fickle believes tokens until it is told otherwise.
type fickle struct{ doubts atomic.Bool }

func (f *fickle) Authenticate(r *http.Request) (string, error) {
	if f.doubts.Load() {
		return "", &principal.Refusal{Reason: "the token has expired"}
	}
	return named{}.Authenticate(r)
}

// A stream ends when the token that opened it is believed no longer.
func TestServer_EndsStreamsWithTheirTokens(t *testing.T) {
	forErasInBubble(t, func(t *testing.T, version string) {
		tokens := &fickle{}
		s := startInBubble(t, func(o *Options) { o.Authenticator = tokens })
		c := s.client(t, "alice", version)
		var response *http.Response
		if version == mcpclient.Newest {
			response = must.Get(c.Do(must.Get(c.Request(t.Context(), http.MethodGet, nil))(t)))(t)
		} else {
			message := must.Get(c.Message("sub", "subscriptions/listen", map[string]any{"notifications": map[string]any{"toolsListChanged": true}}))(t)
			response = must.Get(c.Post(t.Context(), "subscriptions/listen", "", message))(t)
		}
		defer response.Body.Close()
		began := time.Now()
		time.AfterFunc(time.Minute, func() { tokens.doubts.Store(true) })
		_, err := io.Copy(io.Discard, response.Body)
		if took := time.Since(began); err != nil || took < time.Minute || took > time.Minute+commentEvery {
			t.Errorf("the stream ends after %v, %v", took, err)
		}
	})
}

// One principal cannot have all requests open, and the connections of those that are refused are
// closed.
func TestServer_BoundsRequestsOfAPrincipal(t *testing.T) {
	s := start(t, nil)
	open := func() net.Conn {
		conn := must.Get(net.Dial("tcp", strings.TrimPrefix(s.url, "http://")))(t)
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n")
		return conn
	}
	for range account.MaxRequests / 2 {
		open()
	}
	more := open()
	must.Do(t, more.SetReadDeadline(time.Now().Add(patience.Long)))
	if text, err := io.ReadAll(more); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 503 ") || !strings.Contains(string(text), "others of yours") {
		t.Errorf("one more: %q, %v", text, err)
	}
	if got := run(t, s.client(t, "bob", mcpclient.Newest), "", "echo bob"); got != "bob\n" {
		t.Errorf("bob: %q", got)
	}
}

// A message is charged as it comes, and nothing of it stays charged.
func TestServer_ChargesMessagesAsTheyCome(t *testing.T) {
	s := start(t, nil)
	header := map[string]string{"Content-Type": "application/json", "Authorization": "Bearer alice"}
	if status, _, body := s.send(t, http.MethodPost, Path, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":[`+strings.Repeat("1,", 1<<20)+"1]}}", header); status != http.StatusBadRequest || !strings.Contains(body, "more than 10000 values") {
		t.Errorf("a message of many values: status %d, %s", status, body)
	}
	conn := must.Get(net.Dial("tcp", strings.TrimPrefix(s.url, "http://")))(t)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n100001\r\n%s", strings.Repeat(" ", 64<<10+1))
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("%d bytes are charged", s.o.Book.Bytes.Used()) }, func() bool {
		n := s.o.Book.Bytes.Used()
		return n > 128<<10 && n < 512<<10
	})
	conn.Close()
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("%d bytes are charged at the end", s.o.Book.Bytes.Used()) }, func() bool { return s.o.Book.Bytes.Used() == 0 })
}

// A call that waits for its user between two requests is charged until its answer is there.
func TestServer_ChargesCallsThatWaitForTheirUsers(t *testing.T) {
	s := start(t, nil)
	c := s.client(t, "alice", mcpclient.Stateless)
	c.Capabilities = map[string]any{"elicitation": map[string]any{}}
	const large = 2 << 20
	params := map[string]any{"name": "run", "arguments": map[string]any{"env": "bash", "code": "# ask" + strings.Repeat("x", large) + "\necho ran"}}
	message := must.Get(c.Call(t.Context(), "tools/call", params, nil))(t)
	var required struct{ ResultType, RequestState string }
	if must.Do(t, json.Unmarshal(message.Result, &required)); required.ResultType != "input_required" {
		t.Fatalf("the answer is %.300s", message.Result)
	}
	charged := func() string { return fmt.Sprintf("%d bytes are charged", s.o.Book.Bytes.Held("alice")) }
	if s.o.Book.Bytes.Held("alice") < large {
		t.Errorf("while it waits, %s", charged())
	}
	params["requestState"], params["inputResponses"] = required.RequestState, map[string]any{"choice": map[string]any{"action": "accept", "content": map[string]any{"choice": "once"}}}
	if answer := must.Get(must.Get(c.Call(t.Context(), "tools/call", params, nil))(t).Answer())(t); answer.Text() != "ran\n" {
		t.Errorf("the answer is %.300q", answer.Text())
	}
	patience.Wait(t, patience.Long, charged, func() bool { return s.o.Book.Bytes.Held("alice") == 0 })
}

// A call that the transport refuses is told of as any other refused call.
func TestServer_TellsOfCallsThatItRefuses(t *testing.T) {
	s := start(t, nil)
	const modern = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	type head = map[string]string
	for name, test := range map[string]struct {
		params string
		header head
	}{
		"another method":   {modern, head{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "ping"}},
		"another name":     {modern, head{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "walk"}},
		"another version":  {modern, head{"Mcp-Protocol-Version": "2025-11-25", "Mcp-Method": "tools/call", "Mcp-Name": "run"}},
		"future version":   {`"x":1`, head{"Mcp-Protocol-Version": "2027-01-01", "Mcp-Method": "tools/call", "Mcp-Name": "run"}},
		"no HTTP session":  {`"x":1`, nil},
		"old HTTP session": {`"x":1`, head{"Mcp-Session-Id": "x"}},
		"unknown old":      {`"x":1`, head{"Mcp-Protocol-Version": "1999-01-01"}},
		"an unknown tool":  {modern + `,"name":"walk"`, head{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "walk"}},
	} {
		header := head{"Content-Type": "application/json", "Authorization": "Bearer " + name}
		maps.Copy(header, test.header)
		params := test.params
		if !strings.Contains(params, `"name"`) {
			params += `,"name":"run"`
		}
		_, _, body := s.send(t, http.MethodPost, Path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"env":"bash","code":"echo 1"},`+params+`}}`, header)
		s.refusals.mu.Lock()
		reasons := s.refusals.reasons[name]
		s.refusals.mu.Unlock()
		if len(reasons) != 1 || !strings.HasPrefix(reasons[0], "echo 1: ") {
			t.Errorf("%s: told of %q, answered %s", name, reasons, body)
		}
	}
}

// An answer waits for memory as long as only others hold it, and is dropped after a second if its
// own principal does not read earlier ones.
func TestServer_WaitsForAnswersThatOthersDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startInBubble(t, nil)
		const large = 8 << 20
		must.Get(s.o.Book.Bytes.Try("carol", large+1))(t)
		var unread []func()
		for i := 0; ; i++ {
			release, err := s.o.Book.Bytes.Try(fmt.Sprint("slow-", i), large)
			if err != nil {
				break
			}
			unread = append(unread, release)
		}
		time.AfterFunc(30*time.Second, func() {
			for _, release := range unread {
				release()
			}
		})
		began := time.Now()
		if release := s.chargeAnswer("carol", large); release != nil || time.Since(began) != answerWait {
			t.Errorf("carol's answer: charged %v after %v", release != nil, time.Since(began))
		}
		release := s.chargeAnswer("bob", large)
		if release == nil || time.Since(began) != 30*time.Second {
			t.Fatalf("bob's answer: charged %v after %v", release != nil, time.Since(began))
		}
		release()
	})
}

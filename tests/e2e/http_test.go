package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// httpServer is a server that listens on a port of this machine.
type httpServer struct {
	t      testing.TB
	url    string // without a path
	cmd    *exec.Cmd
	log    *mcptest.Log
	exited chan error
	tokens map[string]string // by name
	file   string            // of the tokens
}

// longVariable has the tests of a server over HTTP take their full sizes, and expect what
// they measure to be within its time. Only a machine that does nothing else is that quick.
const longVariable = "NIX_SANDBOX_TEST_LONG"

func isLong() bool { return os.Getenv(longVariable) != "" }

// sized returns the full size of something in the long form of a test, and the other one in
// its short form.
func sized(short, full int) int {
	if isLong() {
		return full
	}
	return short
}

// expectWithin prints how long something took. The long form of a test fails where that is
// too long.
func expectWithin(t testing.TB, most time.Duration, what string, took time.Duration) {
	t.Helper()
	t.Logf("%s: %v", what, took.Round(time.Millisecond))
	if isLong() && took > most {
		t.Errorf("%s took %v, want %v at most", what, took, most)
	}
}

var listening = regexp.MustCompile(`"msg":"listening","address":"([^"]+)"`)

// startHTTP starts a server with a token for each name, whose settings for HTTP, and
// limits of every environment, are replaced by these.
func startHTTP(t testing.TB, names []string, serve, limits map[string]any, variables ...string) *httpServer {
	t.Helper()
	return startHTTPAs(t, func(cmd *exec.Cmd) *exec.Cmd { return cmd }, names, serve, limits, variables...)
}

// startHTTPAs starts a server as startHTTP does, by another command that runs its command.
func startHTTPAs(t testing.TB, wrap func(*exec.Cmd) *exec.Cmd, names []string, serve, limits map[string]any, variables ...string) *httpServer {
	t.Helper()
	s := &httpServer{t: t, log: &mcptest.Log{}, exited: make(chan error, 1), tokens: map[string]string{}, file: filepath.Join(t.TempDir(), "tokens")}
	for _, name := range names {
		// As in the file: a class may follow the name.
		name, class, _ := strings.Cut(name, " class=")
		s.tokens[name] = s.newToken(name, class)
	}
	all := environments(t)
	for _, fields := range all {
		// A machine that stands still for half a minute ends no call.
		fields["timeout_seconds"], fields["max_timeout_seconds"] = 600, nil
		maps.Copy(fields, limits)
	}
	metadata := mcptest.MetadataWith(t, all, map[string]any{"serve": mcptest.Serve(serve)})
	variables = append([]string{"NIX_SANDBOX_METADATA=" + metadata, "NIX_SANDBOX_TOKENS=" + s.file}, variables...)
	if os.Getenv("NIX_SANDBOX_START_SECONDS") == "" {
		variables = append(variables, "NIX_SANDBOX_START_SECONDS=120")
	}
	s.cmd = command(t, variables...)
	s.cmd.Args = []string{s.cmd.Args[0], "serve", "--http", "127.0.0.1:0", "--log-format", "json"}
	s.cmd = wrap(s.cmd)
	s.cmd.Stderr = s.log
	must.Do(t, s.cmd.Start())
	go func() { s.exited <- s.cmd.Wait() }()
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("the server's log:\n%s", s.log)
		}
	})
	patience.Wait(t, patience.Long, func() string { return "the server does not listen:\n" + s.log.String() }, func() bool { return listening.MatchString(s.log.String()) })
	s.url = "http://" + listening.FindStringSubmatch(s.log.String())[1]
	return s
}

// newToken adds a token of a class to the file; the empty class is the default one.
func (s *httpServer) newToken(name, class string) string {
	s.t.Helper()
	out, err := exec.Command(undertest.Server(s.t), "token", "new", name, "--class", class, "--file", s.file).Output()
	must.Do(s.t, err)
	return strings.TrimSpace(string(out))
}

// client returns a client of one of the names that has begun.
func (s *httpServer) client(name, version string) *httpclient.Client {
	s.t.Helper()
	c := &httpclient.Client{URL: s.url + "/mcp", Token: s.tokens[name], Version: version}
	must.Do(s.t, c.Initialize(s.t.Context()))
	return c
}

// inHTTP is a call in a session.
func inHTTP(t testing.TB, c *httpclient.Client, session, env, code string) mcptest.Answer {
	t.Helper()
	answer := must.Get(c.Run(t.Context(), mcptest.Arguments{Code: code, Env: env, Session: session}))(t)
	return answer
}

// status sends an initialize with these fields and returns its response's status.
func (s *httpServer) status(ctx context.Context, header http.Header) int {
	s.t.Helper()
	c := &httpclient.Client{URL: s.url + "/mcp", Version: mcptest.Newest, Header: header}
	message := must.Get(c.Message(1, "initialize", map[string]any{"protocolVersion": mcptest.Newest, "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "test", "version": "1"}}))(s.t)
	response := must.Get(c.Post(ctx, "initialize", "", message))(s.t)
	response.Body.Close()
	return response.StatusCode
}

// end asks the server to end, and returns when it has.
func (s *httpServer) end() {
	s.t.Helper()
	must.Do(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	must.Do(s.t, <-s.exited)
}

// Two principals with a session of one name have two interpreters, which either era of
// the protocol finds again.
func TestHTTP_KeepsPrincipalsApart(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, []string{"alice", "bob"}, map[string]any{"lame_duck_seconds": 0}, nil)
	for _, version := range []string{mcptest.Newest, mcptest.Stateless} {
		alice, bob := s.client("alice", version), s.client("bob", version)
		expect(t, inHTTP(t, alice, "s", "python", "secret = 42; open('/workspace/outputs/f', 'w').write('alice'); print(secret)"), "42\n")
		if got := inHTTP(t, bob, "s", "python", "print('secret' in globals())"); got.Text() != "False\n" {
			t.Errorf("bob's session: %q", got.Text())
		}
		expect(t, inHTTP(t, s.client("alice", version), "s", "python", "print(secret)"), "42\n")
		if _, err := bob.Call(t.Context(), "resources/read", map[string]any{"uri": "sandbox://s/outputs/f"}, nil); err == nil {
			t.Error("bob reads alice's file")
		}
		must.Get(alice.Call(t.Context(), "resources/read", map[string]any{"uri": "sandbox://s/outputs/f"}, nil))(t)
	}
	pid := s.cmd.Process.Pid
	if len(procfs.Descendants(pid)) == 0 {
		t.Error("no sandbox runs")
	}
	children := procfs.Descendants(pid)
	s.end()
	patience.Gone(t, children...)
	for name, token := range s.tokens {
		if strings.Contains(s.log.String(), token) {
			t.Errorf("the log has the token of %s", name)
		}
	}
}

// Tokens are read again at SIGHUP, and stay as they were where the file is broken.
func TestHTTP_ReadsTokensAgain(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, []string{"alice"}, map[string]any{"lame_duck_seconds": 0}, nil)
	bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	hangUp := func(logged string) {
		t.Helper()
		before := strings.Count(s.log.String(), logged)
		must.Do(t, s.cmd.Process.Signal(syscall.SIGHUP))
		patience.Wait(t, patience.Long, func() string { return "the log lacks " + logged }, func() bool { return strings.Count(s.log.String(), logged) > before })
	}
	bob := s.newToken("bob", "")
	if got := s.status(t.Context(), bearer(bob)); got != http.StatusUnauthorized {
		t.Errorf("a token that was not read: status %d", got)
	}
	hangUp("tokens read")
	if got := s.status(t.Context(), bearer(bob)); got != http.StatusOK {
		t.Errorf("a token that was read: status %d", got)
	}
	// A token counts alone and in its own field.
	for name, header := range map[string]http.Header{
		"none":    {},
		"wrong":   bearer(bob + "a"),
		"empty":   bearer(""),
		"doubled": {"Authorization": {"Bearer " + bob, "Bearer " + bob}},
	} {
		if got := s.status(t.Context(), header); got != http.StatusUnauthorized {
			t.Errorf("%s token: status %d", name, got)
		}
	}
	inQuery := must.Get(http.Post(s.url+"/mcp?access_token="+bob, "application/json", strings.NewReader("{}")))(t)
	inQuery.Body.Close()
	if inQuery.StatusCode != http.StatusUnauthorized {
		t.Errorf("a token in the query: status %d", inQuery.StatusCode)
	}
	for name, mistake := range tokenMistakes(s.file) {
		must.Do(t, os.WriteFile(s.file, []byte(mistake.text), 0o600))
		must.Do(t, os.Chmod(s.file, mistake.mode))
		hangUp("the tokens stay as they were")
		if !strings.Contains(s.log.String(), mistake.want) {
			t.Errorf("%s: the log lacks %q", name, mistake.want)
		}
		for _, token := range []string{s.tokens["alice"], bob} {
			if got := s.status(t.Context(), bearer(token)); got != http.StatusOK {
				t.Errorf("%s: status %d for a token of before", name, got)
			}
		}
	}
	if strings.Contains(s.log.String(), bob) || strings.Contains(s.log.String(), s.tokens["alice"]) {
		t.Error("the log has a token")
	}
}

// tokenMistake is a file of tokens that no server uses, and what it says of it.
type tokenMistake struct {
	text string
	mode os.FileMode
	want string
}

func tokenMistakes(path string) map[string]tokenMistake {
	line := "alice sha256:" + strings.Repeat("0", 64) + "\n"
	return map[string]tokenMistake{
		"a broken line":               {"# people\nalice secret\n", 0o600, path + ": line 2: it is not NAME sha256:HASH"},
		"a hash twice":                {line + "# people\n" + strings.Replace(line, "alice", "bob", 1), 0o600, path + ": line 3: it has the hash of another line, of alice"},
		"a file that others write to": {line, 0o620, path + " can be written by others than its owner (mode 0620): chmod go-w it"},
	}
}

// A server whose tokens cannot be used does not start, and names file and line.
func TestHTTP_RefusesTokenFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	for name, mistake := range tokenMistakes(file) {
		t.Run(name, func(t *testing.T) {
			must.Do(t, os.WriteFile(file, []byte(mistake.text), 0o600))
			must.Do(t, os.Chmod(file, mistake.mode))
			cmd := command(t, "NIX_SANDBOX_TOKENS="+file)
			cmd.Args = []string{cmd.Args[0], "serve", "--http", "127.0.0.1:0"}
			expectRefusal(t, cmd, "the tokens cannot be used: "+mistake.want, "hint: correct the file")
		})
	}
}

// A browser's page may call the server from the origins and under the names that the
// configuration has, and from no others.
func TestHTTP_RefusesStrangePages(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, []string{"alice"}, map[string]any{
		"lame_duck_seconds": 0, "hosts": []string{"sandbox.example"}, "origins": []string{"https://page.example"},
	}, map[string]any{"prewarm": 0}, "NIX_SANDBOX_HOSTS=proxy.example,192.0.2.1")
	for _, test := range []struct {
		host, origin string
		want         int
	}{
		{"", "", http.StatusOK},
		{"sandbox.example", "", http.StatusOK},
		{"sandbox.example:443", "https://page.example", http.StatusOK},
		{"proxy.example:8800", "", http.StatusOK},
		{"192.0.2.1:8800", "", http.StatusOK},
		{"", "https://page.example", http.StatusOK},
		{"", "http://localhost:3000", http.StatusOK},
		{"", "https://evil.example", http.StatusForbidden},
		{"", "https://page.example.evil.example", http.StatusForbidden},
		{"", "null", http.StatusForbidden},
		{"evil.example", "", http.StatusForbidden},
		{"evil.example", "https://page.example", http.StatusForbidden},
	} {
		for _, version := range []string{mcptest.Newest, mcptest.Stateless} {
			c := &httpclient.Client{URL: s.url + "/mcp", Version: version, Token: s.tokens["alice"]}
			if test.origin != "" {
				c.Header = http.Header{"Origin": {test.origin}}
			}
			method, params := "server/discover", map[string]any(nil)
			if !c.IsStateless() {
				method, params = "initialize", map[string]any{"protocolVersion": version, "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "test", "version": "1"}}
			}
			message := must.Get(c.Message(1, method, params))(t)
			r := must.Get(c.Request(t.Context(), http.MethodPost, bytes.NewReader(message)))(t)
			r.Host = test.host
			r.Header.Set("Content-Type", "application/json")
			if c.IsStateless() {
				r.Header.Set("Mcp-Method", method)
			}
			response := must.Get(c.Do(r))(t)
			response.Body.Close()
			if response.StatusCode != test.want {
				t.Errorf("%s of a page of %q to %q: status %d, want %d", method, test.origin, test.host, response.StatusCode, test.want)
			}
		}
	}
}

// An environment that an operator adds is heard of once on each stream, in either era.
func TestHTTP_TellsOfNewEnvironments(t *testing.T) {
	t.Parallel()
	artifact := undertest.Artifact(t, "data")
	folder := t.TempDir()
	s := startHTTP(t, []string{"alice", "bob"}, map[string]any{"lame_duck_seconds": 0}, map[string]any{"prewarm": 0}, "NIX_SANDBOX_DIR="+folder)
	legacy, modern := s.client("alice", mcptest.Newest), s.client("bob", mcptest.Stateless)
	subscribe := must.Get(modern.Message("sub", "subscriptions/listen", map[string]any{"notifications": map[string]any{"toolsListChanged": true}}))(t)
	streams := map[string]*http.Response{
		"GET":    must.Get(legacy.Do(must.Get(legacy.Request(t.Context(), http.MethodGet, nil))(t)))(t),
		"listen": must.Get(modern.Post(t.Context(), "subscriptions/listen", "", subscribe))(t),
	}
	var mu sync.Mutex
	heard := map[string]int{}
	var reading sync.WaitGroup
	for name, stream := range streams {
		reading.Go(func() {
			for m, err := range httpclient.Events(stream.Body) {
				if err != nil {
					return // the server ends
				}
				if m.Method == "notifications/tools/list_changed" {
					mu.Lock()
					heard[name]++
					mu.Unlock()
				}
			}
		})
	}
	began := time.Now()
	must.Do(t, os.Symlink(artifact, filepath.Join(folder, "data")))
	patience.Wait(t, patience.Long, func() string { return "not every stream has heard of it" }, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(heard) == len(streams)
	})
	expectWithin(t, 2*time.Second, "every stream has heard of an environment", time.Since(began))
	expect(t, inHTTP(t, modern, "", "data", "print(6 * 7)"), "42\n")
	// A client without a stream gets the new list as JSON, with nothing before it.
	quiet := s.client("bob", mcptest.Newest)
	list := must.Get(quiet.Post(t.Context(), "tools/list", "", must.Get(quiet.Message(1, "tools/list", nil))(t)))(t)
	defer list.Body.Close()
	if body := must.Get(io.ReadAll(list.Body))(t); list.Header.Get("Content-Type") != "application/json" || !strings.Contains(string(body), `\n- data`) {
		t.Errorf("a client without a stream is answered with %s: %s", list.Header.Get("Content-Type"), body)
	}
	s.end()
	reading.Wait()
	for name, times := range heard {
		if times != 1 {
			t.Errorf("%s heard of it %d times", name, times)
		}
		streams[name].Body.Close()
	}
}

// sentence is what a call that is refused is answered with.
func sentence(t testing.TB, c *httpclient.Client, arguments mcptest.Arguments) string {
	t.Helper()
	answer := must.Get(c.Run(t.Context(), arguments))(t)
	if !answer.IsError {
		t.Errorf("the call is not refused: %q", answer.Text())
	}
	return answer.Text()
}

// What one may have is bounded, each refusal says how and names nothing of others, and
// others have theirs.
func TestHTTP_BoundsPrincipals(t *testing.T) {
	t.Parallel()
	const (
		maxCalls, maxStreams = 16, 64
		each                 = 512 // MB, which a sandbox may use
	)
	sessions := []string{"one", "two", "three", "four"}
	maxMemory := (len(sessions) + 1) * each
	for _, version := range []string{mcptest.Newest, mcptest.Stateless} {
		t.Run(version, func(t *testing.T) {
			s := startHTTP(t, []string{"alice", "bob"}, map[string]any{
				"lame_duck_seconds": 0,
				"quotas":            map[string]any{"default": map[string]any{"calls": maxCalls, "sessions": len(sessions), "streams": maxStreams, "memory_mb": maxMemory}},
			}, map[string]any{"memory_mb": each, "prewarm": 0})
			alice, bob := s.client("alice", version), s.client("bob", version)
			expect(t, inHTTP(t, bob, "of-bob", "bash", "echo bob"), "bob\n")
			// Sessions.
			for _, session := range sessions {
				inHTTP(t, alice, session, "bash", ":")
			}
			if got, want := sentence(t, alice, mcptest.Arguments{Env: "bash", Session: "five", Code: ":"}), fmt.Sprintf("all %d sessions are in use; idle: one (bash, ", len(sessions)); !strings.HasPrefix(got, want) || strings.Contains(got, "of-bob") {
				t.Errorf("a session too many: %q", got)
			}
			// Memory: the sessions leave that of one sandbox.
			long := seconds()
			ctx, cancel := context.WithCancel(t.Context())
			var calls sync.WaitGroup
			calls.Go(func() { _, _ = alice.Run(ctx, mcptest.Arguments{Env: "bash", Code: "sleep " + long}) })
			patience.Wait(t, patience.Long, func() string { return "the call does not run" }, func() bool { return len(procfs.WithCommand("sleep\x00"+long)) == 1 })
			if got, want := sentence(t, alice, mcptest.Arguments{Env: "bash", Code: ":"}), fmt.Sprintf("not run: your sandboxes may use %d of the %d MB that you may have, and this one would be %d more: go on in a session that there is, or call again when one has ended", maxMemory, maxMemory, each); got != want {
				t.Errorf("memory too much: %q", got)
			}
			// Calls: the others wait in a session.
			for range maxCalls - 1 {
				calls.Go(func() {
					// A call of those below may have the last slot.
					for ctx.Err() == nil {
						_, _ = alice.Run(ctx, mcptest.Arguments{Env: "bash", Session: "one", Code: "sleep " + long})
					}
				})
			}
			tooMany := fmt.Sprintf("not run: %d calls of yours run or wait already, which are as many as you may have: call again when one of them has been answered", maxCalls)
			patience.Wait(t, patience.Long, func() string { return "the calls do not come" }, func() bool {
				answer := must.Get(alice.Run(t.Context(), mcptest.Arguments{Env: "bash", Session: "two", Code: ":"}))(t)
				return answer.Text() == tooMany
			})
			expect(t, inHTTP(t, bob, "of-bob", "bash", "echo bob"), "bob\n")
			expect(t, inHTTP(t, bob, "", "bash", "echo bob"), "bob\n")
			cancel()
			calls.Wait()
			// A call of the earlier versions goes on when its client hangs up.
			patience.Wait(t, patience.Long, func() string { return "the calls go on" }, func() bool {
				left := procfs.WithCommand("sleep\x00" + long)
				for _, pid := range left {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
				return len(left) == 0
			})
			// Streams, each in an HTTP session of its own where there are such.
			open := func(name string) *http.Response {
				c := s.client(name, version)
				var response *http.Response
				if c.IsStateless() {
					message := must.Get(c.Message(c.NextID(), "subscriptions/listen", map[string]any{"notifications": map[string]any{"toolsListChanged": true}}))(t)
					response = must.Get(c.Post(t.Context(), "subscriptions/listen", "", message))(t)
				} else {
					response = must.Get(c.Do(must.Get(c.Request(t.Context(), http.MethodGet, nil))(t)))(t)
				}
				t.Cleanup(func() { response.Body.Close() })
				return response
			}
			for i := range maxStreams {
				if response := open("alice"); response.StatusCode != http.StatusOK {
					t.Fatalf("stream %d: status %d", i+1, response.StatusCode)
				}
			}
			response := open("alice")
			body := string(must.Get(io.ReadAll(response.Body))(t))
			if want := fmt.Sprintf("%d streams of yours are open", maxStreams); response.StatusCode != http.StatusTooManyRequests || !strings.Contains(body, want) {
				t.Errorf("a stream too many: status %d, %s", response.StatusCode, body)
			}
			if response := open("bob"); response.StatusCode != http.StatusOK {
				t.Errorf("bob's stream: status %d", response.StatusCode)
			}
		})
	}
}

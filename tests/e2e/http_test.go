package e2e

import (
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

var listening = regexp.MustCompile(`"msg":"listening","address":"([^"]+)"`)

// startHTTP starts a server with a token for each name, whose settings for HTTP, and
// limits of every environment, are replaced by these.
func startHTTP(t testing.TB, names []string, serve, limits map[string]any, variables ...string) *httpServer {
	t.Helper()
	s := &httpServer{t: t, log: &mcptest.Log{}, exited: make(chan error, 1), tokens: map[string]string{}, file: filepath.Join(t.TempDir(), "tokens")}
	for _, name := range names {
		// As in the file: a class may follow the name.
		name, class, _ := strings.Cut(name, " class=")
		s.tokens[name] = s.newToken(name, class)
	}
	all := environments(t)
	for _, fields := range all {
		maps.Copy(fields, limits)
	}
	metadata := mcptest.MetadataWith(t, all, map[string]any{"serve": mcptest.Serve(serve)})
	s.cmd = command(t, append([]string{"NIX_SANDBOX_METADATA=" + metadata, "NIX_SANDBOX_TOKENS=" + s.file}, variables...)...)
	s.cmd.Args = []string{s.cmd.Args[0], "serve", "--http", "127.0.0.1:0", "--log-format", "json"}
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
	doubled := http.Header{"Authorization": {"Bearer " + bob, "Bearer " + bob}}
	if got := s.status(t.Context(), doubled); got != http.StatusUnauthorized {
		t.Errorf("a token twice: status %d", got)
	}
	inQuery := must.Get(http.Post(s.url+"/mcp?access_token="+bob, "application/json", strings.NewReader("{}")))(t)
	inQuery.Body.Close()
	if inQuery.StatusCode != http.StatusUnauthorized {
		t.Errorf("a token in the query: status %d", inQuery.StatusCode)
	}
	must.Do(t, os.WriteFile(s.file, []byte("alice "+bob), 0o600))
	hangUp("the tokens stay as they were")
	if !strings.Contains(s.log.String(), fmt.Sprintf("%s: line 1: it is not NAME sha256:HASH", s.file)) {
		t.Error("the log does not name the line")
	}
	if got := s.status(t.Context(), bearer(s.tokens["alice"])); got != http.StatusOK {
		t.Errorf("a token of before: status %d", got)
	}
	if strings.Contains(s.log.String(), bob) {
		t.Error("the log has a token")
	}
}

// A server whose tokens cannot be used does not start, and names file and line.
func TestHTTP_RefusesTokenFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	must.Do(t, os.WriteFile(file, []byte("# people\nalice secret\n"), 0o600))
	cmd := command(t, "NIX_SANDBOX_TOKENS="+file)
	cmd.Args = []string{cmd.Args[0], "serve", "--http", "127.0.0.1:0"}
	expectRefusal(t, cmd, "the tokens cannot be used: "+file+": line 2: it is not NAME sha256:HASH", "hint: correct the file")
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
	must.Do(t, os.Symlink(artifact, filepath.Join(folder, "data")))
	patience.Wait(t, patience.Long, func() string { return "not every stream has heard of it" }, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(heard) == len(streams)
	})
	expect(t, inHTTP(t, modern, "", "data", "print(6 * 7)"), "42\n")
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

// What one may have is bounded, each refusal says how, and others have theirs.
func TestHTTP_BoundsPrincipals(t *testing.T) {
	t.Parallel()
	for _, version := range []string{mcptest.Newest, mcptest.Stateless} {
		t.Run(version, func(t *testing.T) {
			s := startHTTP(t, []string{"alice", "bob"}, map[string]any{
				"lame_duck_seconds": 0,
				"quotas":            map[string]any{"default": map[string]any{"calls": 3, "sessions": 2, "streams": 2, "memory_mb": 3 * 512}},
			}, map[string]any{"memory_mb": 512, "prewarm": 0})
			alice, bob := s.client("alice", version), s.client("bob", version)
			// Sessions.
			for _, session := range []string{"one", "two"} {
				inHTTP(t, alice, session, "bash", ":")
			}
			if got := sentence(t, alice, mcptest.Arguments{Env: "bash", Session: "three", Code: ":"}); !strings.HasPrefix(got, "all 2 sessions are in use; idle: one (bash, ") {
				t.Errorf("a session too many: %q", got)
			}
			expect(t, inHTTP(t, bob, "three", "bash", "echo bob"), "bob\n")
			// Memory: the two sessions leave that of one sandbox.
			long := seconds()
			ctx, cancel := context.WithCancel(t.Context())
			var calls sync.WaitGroup
			calls.Go(func() { _, _ = alice.Run(ctx, mcptest.Arguments{Env: "bash", Code: "sleep " + long}) })
			patience.Wait(t, patience.Long, func() string { return "the call does not run" }, func() bool { return len(procfs.WithCommand("sleep\x00"+long)) == 1 })
			if got, want := sentence(t, alice, mcptest.Arguments{Env: "bash", Code: ":"}), "not run: your sandboxes may use 1536 of the 1536 MB that you may have, and this one would be 512 more: go on in a session that there is, or call again when one has ended"; got != want {
				t.Errorf("memory too much: %q", got)
			}
			// Calls: two more wait in a session.
			for range 2 {
				calls.Go(func() {
					// A call of those below may have the last slot.
					for ctx.Err() == nil {
						_, _ = alice.Run(ctx, mcptest.Arguments{Env: "bash", Session: "one", Code: "sleep " + long})
					}
				})
			}
			patience.Wait(t, patience.Long, func() string { return "the calls do not come" }, func() bool {
				answer := must.Get(alice.Run(t.Context(), mcptest.Arguments{Env: "bash", Session: "two", Code: ":"}))(t)
				return answer.Text() == "not run: 3 calls of yours run or wait already, which are as many as you may have: call again when one of them has been answered"
			})
			expect(t, inHTTP(t, bob, "three", "bash", "echo bob"), "bob\n")
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
			// Streams.
			open := func() *http.Response {
				if alice.IsStateless() {
					message := must.Get(alice.Message(alice.NextID(), "subscriptions/listen", map[string]any{"notifications": map[string]any{"toolsListChanged": true}}))(t)
					return must.Get(alice.Post(t.Context(), "subscriptions/listen", "", message))(t)
				}
				c := s.client("alice", version)
				return must.Get(c.Do(must.Get(c.Request(t.Context(), http.MethodGet, nil))(t)))(t)
			}
			for i := range 3 {
				response := open()
				defer response.Body.Close()
				want := http.StatusOK
				if i == 2 {
					want = http.StatusTooManyRequests
					body := must.Get(io.ReadAll(response.Body))(t)
					if !strings.Contains(string(body), "2 streams of yours are open") {
						t.Errorf("a stream too many: %s", body)
					}
				}
				if response.StatusCode != want {
					t.Errorf("stream %d: status %d", i, response.StatusCode)
				}
			}
		})
	}
}

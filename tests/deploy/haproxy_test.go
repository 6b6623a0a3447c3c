// Package deploy_test runs several servers behind HAProxy, as dist/deploy/haproxy.cfg
// configures it.
package deploy_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

func TestMain(m *testing.M) { os.Exit(patience.Main(m)) }

const principals = 20

func token(i int) string { return fmt.Sprintf("nsm_principal-%d-of-the-tests", i) }

// world is two servers behind a proxy.
type world struct {
	url       string
	tokens    string // a file
	config    string // of HAProxy; that of deploy/ if empty
	servers   []*exec.Cmd
	logs      []*lines
	addresses []string
}

// lines keeps what a program logs, a line at a time.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) follow(r io.Reader) {
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		l.mu.Lock()
		l.text.WriteString(scanner.Text() + "\n")
		l.mu.Unlock()
	}
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start starts a program that ends with the test, and follows its standard error.
func start(t *testing.T, cmd *exec.Cmd) *lines {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := &lines{}
	stderr := must.Get(cmd.StderrPipe())(t)
	must.Do(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		log.follow(stderr)
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(patience.For(20 * time.Second)):
			_ = cmd.Process.Kill()
			<-ended
			t.Errorf("%s did not end", cmd.Path)
		}
		if t.Failed() {
			t.Logf("%s:\n%s", cmd.Path, log)
		}
	})
	return log
}

var listening = regexp.MustCompile(`msg=listening address=(\S+)`)

// serve starts a server for the principals at an address, and returns the one that it
// has. Where enter is a command that enters another machine's namespace, it is a server
// of that machine.
func serve(t *testing.T, tokens, address string, enter ...string) (*exec.Cmd, *lines, string) {
	t.Helper()
	words := append(slices.Clone(enter), undertest.Server(t), "serve", "--http", address)
	return serveAs(t, exec.Command(words[0], words[1:]...), "NIX_SANDBOX_TOKENS="+tokens)
}

// serveAs starts a server by a command, with variables, and returns the address that it
// has.
func serveAs(t *testing.T, cmd *exec.Cmd, variables ...string) (*exec.Cmd, *lines, string) {
	t.Helper()
	state := t.TempDir()
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+state, "XDG_CACHE_HOME="+state, "NIX_SANDBOX_DIR="+state, "SESSION_IDLE_TIMEOUT=20")
	cmd.Env = append(cmd.Env, variables...)
	log, address := start(t, cmd), ""
	patience.Wait(t, 20*time.Second, log.String, func() bool {
		found := listening.FindStringSubmatch(log.String())
		if found != nil {
			address = found[1]
		}
		return found != nil
	})
	return cmd, log, address
}

// freeAddress is an address on which a proxy is about to listen. Its port is below those that the
// kernel gives to a listener without one (ip_local_port_range), so that no server of another test
// takes it meanwhile.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000)))
		if err == nil {
			defer listener.Close()
			return listener.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// servers starts a server for each way to enter a machine, and a proxy.
func servers(t *testing.T, enter ...[]string) *world {
	t.Helper()
	return serversWith(t, "", enter...)
}

// serversWith is servers with another configuration of HAProxy.
func serversWith(t *testing.T, config string, enter ...[]string) *world {
	t.Helper()
	undertest.Server(t)
	if _, err := exec.LookPath("haproxy"); err != nil {
		t.Skip("haproxy is not installed")
	}
	w := &world{tokens: tokenFile(t), config: config}
	for _, enter := range enter {
		at := "127.0.0.1:0"
		if enter != nil {
			at = farAddress + ":0"
		}
		server, log, address := serve(t, w.tokens, at, enter...)
		w.servers, w.logs, w.addresses = append(w.servers, server), append(w.logs, log), append(w.addresses, address)
	}
	w.url = "http://" + w.proxy(t, http.DefaultClient, "http") + "/mcp"
	return w
}

// tokenFile is a file with a token for each of the principals.
func tokenFile(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	for i := range principals {
		sum := sha256.Sum256([]byte(token(i)))
		fmt.Fprintf(&text, "principal-%d sha256:%s\n", i, hex.EncodeToString(sum[:]))
	}
	path := filepath.Join(t.TempDir(), "tokens")
	must.Do(t, os.WriteFile(path, []byte(text.String()), 0o600))
	return path
}

// proxy starts HAProxy in front of the servers, and returns its address when the client
// is answered there.
func (w *world) proxy(t *testing.T, client *http.Client, scheme string, variables ...string) string {
	t.Helper()
	front := freeAddress(t)
	proxy := exec.Command("haproxy", "-f", cmp.Or(w.config, must.Get(filepath.Abs("../../dist/deploy/haproxy.cfg"))(t)))
	proxy.Env = append(os.Environ(), "MCP_ADDRESS="+front, "MCP_FIRST="+w.addresses[0], "MCP_SECOND="+w.addresses[1])
	proxy.Env = append(proxy.Env, variables...)
	log := start(t, proxy)
	patience.Wait(t, 20*time.Second, log.String, func() bool {
		response, err := client.Get(scheme + "://" + front + "/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return front
}

func (w *world) client(i int, version string) *httpclient.Client {
	return &httpclient.Client{URL: w.url, Version: version, Token: token(i), HTTP: &http.Client{Transport: &http.Transport{}}}
}

// drain has a server end, and waits for that.
func (w *world) drain(t *testing.T, i int) {
	t.Helper()
	must.Do(t, w.servers[i].Process.Signal(syscall.SIGTERM))
	patience.Wait(t, time.Minute, w.logs[i].String, func() bool { return w.servers[i].Process.Signal(syscall.Signal(0)) != nil })
}

// version returns one of the two eras of the protocol.
func version(i int) string {
	if i%2 == 0 {
		return mcpclient.Newest
	}
	return mcpclient.Stateless
}

// Each principal finds what it left behind, also by another HTTP session and in the
// other era of the protocol, and the principals are spread over both servers.
func TestHAProxy_LeadsPrincipalsToTheirSessions(t *testing.T) {
	t.Parallel()
	w := servers(t, nil, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(2*time.Minute))
	defer cancel()
	each := func(do func(i int)) {
		var running sync.WaitGroup
		for i := range principals {
			running.Go(func() { do(i) })
		}
		running.Wait()
	}
	run := func(i int, version, code string) string {
		client := w.client(i, version)
		if err := client.Initialize(ctx); err != nil {
			t.Errorf("principal %d: %v", i, err)
			return ""
		}
		answer, err := client.Run(ctx, mcpclient.Arguments{Env: "bash", Code: code, Session: "state"})
		if err != nil || answer.IsError {
			t.Errorf("principal %d: error %v, %q", i, err, answer.Text())
		}
		return answer.Text()
	}
	each(func(i int) { run(i, version(i), fmt.Sprintf("secret=%d", i)) })
	var found atomic.Int64
	for round := range 3 {
		each(func(i int) {
			if got := run(i, version(i+round), "echo $secret"); got != fmt.Sprintf("%d\n", i) {
				t.Errorf("principal %d found %q", i, got)
				return
			}
			found.Add(1)
		})
	}
	t.Logf("%d of %d states were found", found.Load(), 3*principals)
	for i, log := range w.logs {
		calls := strings.Count(log.String(), "msg=call")
		t.Logf("server %d answered %d calls", i+1, calls)
		if calls == 0 {
			t.Errorf("server %d answered nothing", i+1)
		}
	}
}

// Strangers with made-up tokens do not put others out of the table, and are refused when
// they make up many.
func TestHAProxy_KeepsPrincipalsBesideStrangers(t *testing.T) {
	t.Parallel()
	text := string(must.Get(os.ReadFile("../../dist/deploy/haproxy.cfg"))(t))
	small := strings.Replace(text, "type string len 64 size 100k", "type string len 64 size 10", 1)
	if small == text {
		t.Fatal("dist/deploy/haproxy.cfg has another table")
	}
	config := filepath.Join(t.TempDir(), "haproxy.cfg")
	must.Do(t, os.WriteFile(config, []byte(small), 0o600))
	w := serversWith(t, config, nil, nil)
	run := func(code string) string {
		return must.Get(w.client(0, mcpclient.Stateless).Run(t.Context(), mcpclient.Arguments{Env: "bash", Code: code, Session: "state"}))(t).Text()
	}
	run("secret=here")
	statuses := map[int]int{}
	for i := range 300 {
		stranger := &httpclient.Client{URL: w.url, Version: mcpclient.Stateless, Token: fmt.Sprintf("nsm_stranger-%d", i)}
		_, err := stranger.Call(t.Context(), "ping", nil, nil)
		var refused *httpclient.StatusError
		if !errors.As(err, &refused) {
			t.Fatalf("stranger %d: %v", i, err)
		}
		statuses[refused.Status]++
	}
	if statuses[http.StatusUnauthorized] < 100 || statuses[http.StatusTooManyRequests] == 0 {
		t.Errorf("strangers were answered with %v", statuses)
	}
	patience.Until(t, "the source of the strangers is let in again", func() bool {
		response, err := http.Get(strings.TrimSuffix(w.url, "/mcp") + "/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	if got := run("echo $secret"); got != "here\n" {
		t.Errorf("after 300 strangers, the session has %q", got)
	}
}

// sessionGone reports whether a call failed because its HTTP session was that of another
// server. Clients begin another one then, as the protocol asks.
func sessionGone(err error) bool {
	var refused *mcpclient.Error
	return errors.As(err, &refused) && strings.HasPrefix(refused.Message, "there is no such HTTP session")
}

// While a server ends, no call fails: those that run are answered, and new ones go to
// the other server, where their sessions begin anew.
func TestHAProxy_LosesNoCallOfAServerThatEnds(t *testing.T) {
	t.Parallel()
	w := servers(t, nil, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(2*time.Minute))
	defer cancel()
	var calls atomic.Int64
	ended := make(chan struct{})
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			client := w.client(i, version(i))
			if err := client.Initialize(ctx); err != nil {
				t.Errorf("caller %d: %v", i, err)
				return
			}
			for more := true; more; {
				select {
				case <-ended:
					more = false // and one more
				default:
				}
				answer, err := client.Run(ctx, mcpclient.Arguments{Env: "bash", Code: "sleep 0.2; echo done", Session: "s"})
				if sessionGone(err) {
					client.SetSession("")
					if err := client.Initialize(ctx); err != nil {
						t.Errorf("caller %d begins anew: %v", i, err)
						return
					}
					continue
				}
				if err != nil || answer.IsError || !strings.HasPrefix(answer.Text(), "done\n") {
					t.Errorf("caller %d: error %v, %q", i, err, answer.Text())
					return
				}
				calls.Add(1)
			}
		})
	}
	patience.Wait(t, time.Minute, func() string { return fmt.Sprint(calls.Load(), " calls") }, func() bool { return calls.Load() >= 16 })
	w.drain(t, 0)
	close(ended)
	running.Wait()
	t.Logf("%d calls", calls.Load())
}

// Package greedy shows that a principal which asks for little gets it, whatever others ask
// for: its calls are answered, its files stay, and the audit log has all of its calls.
//
// The server is a process of its own, so that its memory can be measured. All of it is
// real but the sandboxes.
package greedy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/mcphttp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

const (
	// secondsVariable is how long the test runs.
	secondsVariable = "NIX_SANDBOX_TEST_GREEDY_SECONDS"
	// asServer is the variable that makes the test binary the server. Its value is the file
	// of the audit log.
	asServer = "NIX_SANDBOX_TEST_GREEDY_SERVER"

	// asCrowd makes it the greedy clients of the server at this address, until its input ends.
	asCrowd = "NIX_SANDBOX_TEST_GREEDY_CROWD"

	greedyPrincipals = 20
	// maxMemory is what docs/serving.md states, in bytes.
	maxMemory = 512 << 20
	// maxWait is how long an answer may take, and a probe: beside a flood, calls take turns,
	// and everything waits for the processors of a busy machine.
	maxWait = patience.Long
	// modest is the principal that asks for little.
	modest = "modest"
)

func TestMain(m *testing.M) {
	var err error
	if path, ok := os.LookupEnv(asServer); ok {
		err = serve(path)
	} else if address, ok := os.LookupEnv(asCrowd); ok {
		err = ask(address)
	} else {
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// named takes a token for the name of a principal.
type named struct{}

func (named) Authenticate(r *http.Request) (principal.Principal, error) {
	name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return principal.Principal{}, principal.ErrNone
	}
	return principal.Principal{Name: name}, nil
}

// serve serves until it is killed. It prints its address.
func serve(auditFile string) error {
	log := slog.New(slog.DiscardHandler)
	env := registry.Environment{Name: "bash", Language: &registry.Language{Sessions: true}, SessionExec: "/session-run", MemoryMB: 512, Timeout: 5 * time.Second, MaxTimeout: 10 * time.Second, OutputBytes: 1 << 20}
	records, err := audit.Open(auditFile, log)
	if err != nil {
		return err
	}
	book := account.NewBook(func(string) registry.Quota {
		return registry.Quota{Calls: 16, Sessions: 8, Streams: 64, MemoryMB: 8192}
	}, 8, 1)
	records.Charge(book.Record)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	options := service.Options{
		Environments: registry.New(&registry.Set{Environments: map[string]registry.Environment{"bash": env}}),
		Starter:      &sandboxtest.Machine{},
		Sessions:     session.Limits{Idle: time.Minute, Lifetime: time.Hour, Max: 1024},
		Accounts:     book,
		Observers:    []call.Observer{records},
		Log:          log,
	}
	a := options.Assemble()
	a.Begin()
	return mcphttp.New(a.Handler, mcphttp.Options{Authenticator: named{}, Book: book, Log: log}).Serve(listener)
}

// server is the process of a server.
type server struct {
	url, address string
	pid          int
	audit        string
}

func start(t *testing.T) *server {
	t.Helper()
	s := &server{audit: filepath.Join(t.TempDir(), "audit.jsonl")}
	cmd := again(t, asServer+"="+s.audit, "GOGC=50")
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		must.Do(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	})
	var address string
	must.Get(fmt.Fscanln(out, &address))(t)
	s.address, s.url, s.pid = address, "http://"+address, cmd.Process.Pid
	return s
}

// again returns a command that runs the test binary with variables.
func again(t *testing.T, variables ...string) *exec.Cmd {
	cmd := exec.Command(must.Get(os.Executable())(t))
	cmd.Env = append(os.Environ(), variables...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// crowd starts the greedy clients, in a process of their own: what they do with their part of
// the processors delays no answer. The returned function ends them and says what they did.
func (s *server) crowd(t *testing.T, with uint64) (end func() string) {
	t.Helper()
	cmd := again(t, asCrowd+"="+s.address, fmt.Sprintf("%s=%d", seed.Variable, with))
	in := must.Get(cmd.StdinPipe())(t)
	var said bytes.Buffer
	cmd.Stdout = &said
	must.Do(t, cmd.Start())
	return func() string {
		in.Close()
		must.Do(t, cmd.Wait())
		return said.String()
	}
}

// ask is what the process of the greedy clients does.
func ask(address string) error {
	// The server goes first, as it would on a machine of its own.
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 10); err != nil {
		return err
	}
	with, err := seed.Pick()
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	c := newCrowd(ctx, &server{address: address}, rand.New(rand.NewPCG(with, 0)))
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	end()
	c.wait()
	fmt.Print(c)
	return nil
}

func TestModestPrincipal_IsServedBesideGreedyOnes(t *testing.T) {
	length := 10 * time.Second
	if text := os.Getenv(secondsVariable); text != "" {
		length = time.Duration(must.Get(strconv.Atoi(text))(t)) * time.Second
	}
	source := seed.New(t)
	s := start(t)
	began := time.Now()
	ctx, end := context.WithTimeout(t.Context(), length)
	defer end()
	endCrowd := s.crowd(t, source.Uint64())
	var slowestProbe time.Duration
	calls, probes := 0, 0
	probing := make(chan struct{})
	go func() {
		defer close(probing)
		for ctx.Err() == nil {
			took, err := s.probe()
			if err != nil {
				t.Errorf("probe %d: %v", probes, err)
			}
			slowestProbe = max(slowestProbe, took)
			probes++
			time.Sleep(200 * time.Millisecond)
		}
	}()
	m := &modestClient{t: t, s: s, c: &httpclient.Client{URL: s.url + mcphttp.Path, Token: modest, Version: mcpclient.Stateless, HTTP: &http.Client{}}}
	for ctx.Err() == nil {
		calls += m.round()
	}
	end()
	crowd := endCrowd()
	<-probing
	peak := must.Get(procfs.PeakMemory(s.pid))(t)
	t.Logf("%d calls of a modest principal, %d probes, the slowest after %v and %v; %d MB at most; %s",
		calls, probes, m.slowest.Round(time.Millisecond), slowestProbe.Round(time.Millisecond), peak>>20, crowd)
	if peak > maxMemory {
		t.Errorf("%d MB were resident, more than the %d of docs/serving.md", peak>>20, maxMemory>>20)
	}
	if m.slowest > maxWait || slowestProbe > maxWait {
		t.Errorf("a call took %v, a probe %v: want %v at most", m.slowest, slowestProbe, maxWait)
	}
	m.checkRecords(time.Since(began))
}

// probe asks whether the server is ready, as HAProxy does, on a new connection.
func (s *server) probe() (took time.Duration, err error) {
	began := time.Now()
	client := &http.Client{Timeout: maxWait, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(s.url + "/readyz")
	if err != nil {
		return 0, err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %s", response.Status)
	}
	return time.Since(began), nil
}

// modestClient makes one call at a time.
type modestClient struct {
	t       *testing.T
	s       *server
	c       *httpclient.Client
	rounds  int
	slowest time.Duration
	traces  []string
}

// round makes some calls, whose answers it knows, and returns how many.
func (m *modestClient) round() int {
	m.rounds++
	secret := fmt.Sprintf("round-%d", m.rounds)
	m.run("work", "echo "+secret+" >outputs/thesis; X="+secret, "")
	m.run("work", "echo $X", secret+"\n")
	m.run("work", "cat outputs/thesis", secret+"\n")
	m.run("", "echo "+secret, secret+"\n")
	began := time.Now()
	reply, err := m.c.Call(m.t.Context(), "resources/read", map[string]any{"uri": "sandbox://work/outputs/thesis"}, nil)
	if err != nil || !strings.Contains(string(reply.Result), secret) {
		m.t.Errorf("after %d rounds, its file is %.300s, %v", m.rounds, reply.Result, err)
	}
	m.slowest = max(m.slowest, time.Since(began))
	time.Sleep(20 * time.Millisecond)
	return 5
}

func (m *modestClient) run(session, code, want string) {
	began := time.Now()
	trace := fmt.Sprintf("%032x", len(m.traces)+1)
	m.traces = append(m.traces, trace)
	answer, err := m.c.RunWith(m.t.Context(), mcpclient.Arguments{Env: "bash", Session: session, Code: code}, map[string]any{"traceparent": "00-" + trace + "-0000000000000001-01"}, nil)
	if err != nil || answer.IsError || want != "" && answer.Text() != want {
		m.t.Errorf("round %d: %q is answered with %.300q, %v", m.rounds, code, answer.Text(), err)
	}
	m.slowest = max(m.slowest, time.Since(began))
}

// recordsEach is what the records of one principal may take in a time, in bytes.
func recordsEach(took time.Duration) int64 { return 5<<20 + int64(took.Seconds())*(16<<10) }

// checkRecords looks for each call of the modest principal in the audit log, and at what
// others take of it.
func (m *modestClient) checkRecords(took time.Duration) {
	found := map[string]bool{}
	bytes := map[string]int64{}
	for n := audit.Files; n >= 0; n-- {
		path := m.s.audit
		if n > 0 {
			path = fmt.Sprintf("%s.%d", path, n)
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		must.Do(m.t, err)
		for line := range strings.Lines(string(text)) {
			var r audit.Record
			must.Do(m.t, json.Unmarshal([]byte(line), &r))
			bytes[r.Who] += int64(len(line))
			if r.Who == modest {
				found[r.Trace] = true
			}
		}
	}
	for i, trace := range m.traces {
		if !found[trace] {
			m.t.Fatalf("the audit log lacks call %d of %d", i+1, len(m.traces))
		}
	}
	for who, n := range bytes {
		if n > recordsEach(took) {
			m.t.Errorf("the records of %s take %d bytes after %v", who, n, took)
		}
	}
}

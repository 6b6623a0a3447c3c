// Package greedy shows that a principal which asks for little gets it, whatever others ask
// for: its calls are answered correctly, its files stay, and the audit log has all of its calls.
//
// The server is a process of its own, so that its memory can be measured. All of it is
// real but the sandboxes and the builder.
package greedy

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
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/builder"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/mcphttp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/callfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/sessionfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/packages"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

const (
	// secondsVariable is how long the test runs. Without it, there is one round of each kind of
	// greed.
	secondsVariable = "NIX_SANDBOX_TEST_GREEDY_SECONDS"
	// kindVariable names kinds of greed, separated by commas, if not all are wanted.
	kindVariable = "NIX_SANDBOX_TEST_GREEDY_KINDS"
	// asServer is the variable that makes the test binary the server. Its value is a folder.
	asServer = "NIX_SANDBOX_TEST_GREEDY_SERVER"
	// asCrowd makes it the greedy clients of the server at this address.
	asCrowd = "NIX_SANDBOX_TEST_GREEDY_CROWD"

	// maxMemory is what docs/serving.md states, in bytes.
	maxMemory = 512 << 20
	// callsAtOnce is how many calls run at a time, and buildTime how long a build takes.
	callsAtOnce = 8
	buildTime   = 50 * time.Millisecond
	// modest is the principal that asks for little.
	modest = "modest"
)

func TestMain(m *testing.M) {
	var err error
	if folder, ok := os.LookupEnv(asServer); ok {
		err = serve(folder)
	} else if address, ok := os.LookupEnv(asCrowd); ok {
		err = crowdMain(address)
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

func (named) Authenticate(r *http.Request) (string, error) {
	name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return "", principal.ErrNone
	}
	return name, nil
}

// serve serves until it is killed. It prints its address.
func serve(folder string) error {
	log := slog.New(slog.DiscardHandler)
	env := registry.Environment{Name: "bash", Language: &registry.Language{Sessions: true}, SessionExec: "/session-run", MemoryMB: 512, Timeout: 60 * time.Second, MaxTimeout: 60 * time.Second, OutputBytes: 1 << 20}
	place, results, artifact, err := startBuilder(folder)
	if err != nil {
		return err
	}
	env.OnDemand = &registry.OnDemand{All: true, Folder: artifact}
	records, err := audit.Open(auditFile(folder), log)
	if err != nil {
		return err
	}
	// What the operator allows each principal bounds nobody here.
	book := account.NewBook(func(string) registry.Quota {
		return registry.Quota{Calls: 128, Sessions: 8, Streams: 64, MemoryMB: 1 << 20}
	}, callsAtOnce)
	records.Charge(book.Record)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	limits := session.Limits{Idle: 10 * time.Minute, Lifetime: time.Hour, Max: 256}
	kept, err := sessionfiles.Open(store.Options{Folder: filepath.Join(folder, "kept"), Limit: 12 << 20, Log: log})
	if err != nil {
		return err
	}
	machine := &sandboxtest.Machine{}
	limits.MaxEach = book.Sessions
	files := callfiles.New(callfiles.Limits{Idle: limits.Idle, Lifetime: limits.Lifetime, Calls: 128, Bytes: 24 << 20}, folder, log)
	options := &service.Options{
		Starter:   machine,
		Sessions:  limits,
		Admission: book,
		CallFiles: files,
		Tool: tool.Options{
			Environments: registry.New(&registry.Set{Environments: map[string]registry.Environment{"bash": env}}),
			Packages:     packages.Catalog{Folder: results}, Kept: files, KeptFiles: true,
			Observers: []call.Observer{records}, Reads: book, Log: log,
		},
		Log: log,
	}
	onDemand := packages.Options{
		Folder: results, Bounds: order.Bounds{MaxClosureMB: 1, KeepMB: 1 << 20, BuildSeconds: 60, MaxBuilds: 1, KeepDays: 1},
		Place: place, Used: options.Warm, Log: log,
	}
	options.Layers = []service.Layer{
		{Session: sessionfiles.NewPart(kept, log)},
		{Executor: func(next call.Executor) call.Executor { return packages.NewExecutor(next, onDemand) }},
		{Executor: book.Executor, Starter: book.Starter},
		{Close: files.Close},
	}
	a := options.Assemble()
	a.Begin()
	go func() {
		for ; ; time.Sleep(5 * time.Millisecond) {
			if n := machine.Running(); n > callsAtOnce {
				fmt.Fprintf(os.Stderr, "error: %d calls run at a time, more than %d\n", n, callsAtOnce)
				os.Exit(1)
			}
		}
	}()
	return mcphttp.New(a.Handler, mcphttp.Options{Authenticator: named{}, Book: book, Log: log}).Serve(listener)
}

func auditFile(folder string) string { return filepath.Join(folder, "audit.jsonl") }

// startBuilder starts a builder whose Nix is a pair of scripts, which take buildTime and make each environment the same
// artifact. It returns the way to order of it, and the folder of results.
func startBuilder(folder string) (place func(context.Context, order.Order, func(int, int)) (order.Report, error), results, artifact string, err error) {
	results, artifact = filepath.Join(folder, "packages"), filepath.Join(folder, "artifact")
	fields := mcptest.Settings(nil)["defaults"].(map[string]any)
	fields["schema"], fields["name"], fields["backend"] = 1, "bash", "jail"
	text, err := json.Marshal(fields)
	err = errors.Join(err, os.MkdirAll(filepath.Join(artifact, "bin"), 0o700), os.WriteFile(filepath.Join(artifact, "metadata.json"), text, 0o600))
	for name, text := range map[string]string{
		"artifact/bin/run": "", "artifact/bin/session-run": "",
		"nix":       "#!/bin/sh\necho build none\n",
		"nix-store": fmt.Sprintf("#!/bin/sh\n[ $2 = --dry-run ] || { sleep %g; ln -sfn %s \"$4\"; }\n", buildTime.Seconds()/2, artifact),
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o700))
	}
	err = errors.Join(err, os.Setenv("PATH", folder+":"+os.Getenv("PATH")))
	socket := filepath.Join(folder, "orders")
	listener, wrong := order.Listen(socket)
	if err = errors.Join(err, wrong); err != nil {
		return nil, "", "", err
	}
	go func() {
		_ = builder.New(&builder.Nix{Log: io.Discard}, results, nil).Serve(context.Background(), listener)
	}()
	return func(ctx context.Context, o order.Order, progress func(int, int)) (order.Report, error) {
		return order.Place(ctx, socket, o, progress)
	}, results, artifact, nil
}

// server is the process of a server.
type server struct {
	url, address, folder string
	pid                  int
}

func start(t *testing.T) *server {
	t.Helper()
	s := &server{folder: t.TempDir()}
	cmd := again(t, asServer+"="+s.folder, "GOGC=50", "GOMEMLIMIT=400MiB")
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		must.Do(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	})
	must.Get(fmt.Fscanln(out, &s.address))(t)
	s.url, s.pid = "http://"+s.address, cmd.Process.Pid
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

// greedyClients are the process of the crowd.
type greedyClients struct {
	t     *testing.T
	in    io.WriteCloser
	lines chan string
}

// crowd starts the greedy clients, in a process of their own: what they do with their part of
// the processors delays no answer.
func (s *server) crowd(t *testing.T, with uint64) *greedyClients {
	t.Helper()
	cmd := again(t, asCrowd+"="+s.address, fmt.Sprintf("%s=%d", seed.Variable, with))
	g := &greedyClients{t: t, in: must.Get(cmd.StdinPipe())(t), lines: make(chan string)}
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		must.Do(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	})
	go func() {
		defer close(g.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			g.lines <- lines.Text()
		}
	}()
	return g
}

// tell ends what the crowd does and begins another kind of greed, or none. It returns what the crowd
// did before when the next kind has begun.
func (g *greedyClients) tell(kind string) (before string) {
	g.t.Helper()
	must.Get(fmt.Fprintln(g.in, kind))(g.t)
	timeout := time.After(3 * patience.Long)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case line, ok := <-g.lines:
			if !ok {
				g.t.Fatal("the crowd has ended")
			}
			if line == "begun" {
				return before
			}
			before = line
		case <-ticker.C:
			if g.t.Failed() { // as [server.watch] found
				g.t.FailNow()
			}
		case <-timeout:
			g.t.Fatalf("%s: the crowd cannot ask for so much", kind)
		}
	}
}

func TestModestPrincipal_IsServedBesideGreedyOnes(t *testing.T) {
	length := time.Duration(0)
	if text := os.Getenv(secondsVariable); text != "" {
		length = time.Duration(must.Get(strconv.Atoi(text))(t)) * time.Second
	}
	source := seed.New(t)
	s := start(t)
	began := time.Now()
	crowd := s.crowd(t, source.Uint64())
	watching, endWatch := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for watching.Err() == nil && s.watch(t) {
			time.Sleep(100 * time.Millisecond)
		}
	}()
	defer func() {
		endWatch()
		<-watched
	}()
	m := newModest(t, s)
	m.round()
	for round := 0; round == 0 || time.Since(began) < length; round++ {
		kinds := []string{everything}
		for kind := range greeds {
			kinds = append(kinds, kind)
		}
		slices.Sort(kinds)
		if only := os.Getenv(kindVariable); only != "" {
			kinds = strings.Split(only, ",")
		}
		source.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, kind := range kinds {
			m.beside(crowd, kind)
		}
	}
	crowd.tell("nothing")
	peak := must.Get(procfs.PeakMemory(s.pid))(t)
	t.Logf("%d calls of a modest principal, the slowest after %v; %d MB at most; %v", len(m.traces), m.slowest.Round(time.Millisecond), peak>>20, time.Since(began).Round(time.Second))
	m.checkRecords(time.Since(began))
}

// watch looks at the server's memory, and asks whether it is ready, as HAProxy does, on a new
// connection. It reports whether all is well.
func (s *server) watch(t *testing.T) (isWell bool) {
	if peak, err := procfs.PeakMemory(s.pid); err != nil || peak > maxMemory {
		t.Errorf("%d MB were resident, more than the %d of docs/serving.md, %v", peak>>20, maxMemory>>20, err)
		_ = syscall.Kill(s.pid, syscall.SIGKILL) // before it harms others
		return false
	}
	client := &http.Client{Timeout: patience.Long, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(s.url + "/readyz")
	if err == nil {
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %s", response.Status)
		}
	}
	if err != nil {
		t.Errorf("a probe: %v", err)
	}
	return err == nil
}

// modestClient makes one call at a time, each on a connection of its own.
type modestClient struct {
	t *testing.T
	s *server
	// modern and legacy are its clients in both eras of the protocol. The latter has an HTTP session.
	modern, legacy *httpclient.Client
	rounds         int
	file           string // that an earlier call left
	slowest        time.Duration
	traces         []string
}

func newModest(t *testing.T, s *server) *modestClient {
	client := func(version string) *httpclient.Client {
		return &httpclient.Client{URL: s.url + mcphttp.Path, Token: modest, Version: version, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	}
	m := &modestClient{t: t, s: s, modern: client(mcpclient.Stateless), legacy: client("2025-11-25")}
	must.Do(t, m.legacy.Initialize(t.Context()))
	m.run(m.modern, "bash", "thesis", "echo chapter >thesis", "")
	m.run(m.modern, "bash", "thesis", "crash", "")
	return m
}

// beside makes a round beside a kind of greed.
func (m *modestClient) beside(crowd *greedyClients, kind string) {
	began, slowest := time.Now(), m.slowest
	m.slowest = 0
	crowd.tell(kind)
	begun := time.Since(began)
	m.round()
	m.t.Logf("%-25s %5.1f s, %5.1f s until it begins; the slowest call took %5.2f s", kind, time.Since(began).Seconds(), begun.Seconds(), m.slowest.Seconds())
	m.slowest = max(m.slowest, slowest)
}

// round makes some calls, whose answers it knows.
func (m *modestClient) round() {
	m.rounds++
	secret := fmt.Sprintf("round-%d", m.rounds)
	m.run(m.modern, "bash", "work", "echo "+secret+" >outputs/notes; X="+secret, "")
	m.run(m.legacy, "bash", "work", "echo $X", secret+"\n")
	m.read("sandbox://work/outputs/notes", secret)
	// What it keeps has outlived its session, which it is told of.
	m.run(m.modern, "bash", "thesis", "cat thesis", "chapter\n", "its sandbox died; its variables are gone, its files in /workspace are kept (1,")
	m.run(m.modern, "bash", "thesis", "crash", "")
	// So has the file of an earlier call.
	if m.file != "" {
		m.read(m.file, "figures")
	}
	answer := m.run(m.modern, "bash", "", "echo figures >outputs/figures", "")
	for _, content := range answer.Content {
		if content.URI != "" {
			m.file = content.URI
		}
	}
	// Large answers and messages, which are less than what each principal may have.
	if answer = m.run(m.modern, "bash", "", "fill 700000", ""); len(answer.Text()) != 700_000 {
		m.t.Errorf("an answer of 700000 bytes has %d: %.200q", len(answer.Text()), answer.Text())
	}
	m.run(m.modern, "bash", "", "echo "+secret+"; #"+padding[:300_000], secret+"\n")
	m.run(m.modern, "bash+"+secret, "", "echo "+secret, secret+"\n")
}

// run makes a call. If it wants something, that is the first text of the answer, and the texts contain others.
func (m *modestClient) run(client *httpclient.Client, env, session, code, want string, others ...string) mcpclient.Answer {
	m.t.Helper()
	if m.t.Failed() { // as [server.watch] found
		m.t.FailNow()
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience.Long)
	defer cancel()
	trace := fmt.Sprintf("%032x", len(m.traces)+1)
	m.traces = append(m.traces, trace)
	answer, err := client.RunWith(ctx, mcpclient.Arguments{Env: env, Session: session, Code: code}, map[string]any{"traceparent": "00-" + trace + "-0000000000000001-01"}, nil)
	isWrong := err != nil || answer.IsError != (code == "crash")
	if want != "" {
		isWrong = isWrong || !slices.Contains(answer.Texts(), want)
	}
	for _, other := range others {
		isWrong = isWrong || !strings.Contains(answer.Text(), other)
	}
	if isWrong {
		m.t.Fatalf("round %d: %.100q is answered after %v with %.300q, %v", m.rounds, code, time.Since(began), answer.Texts(), err)
	}
	m.slowest = max(m.slowest, time.Since(began))
	return answer
}

// read reads a file, which contains a text.
func (m *modestClient) read(uri, want string) {
	m.t.Helper()
	if m.t.Failed() { // as [server.watch] found
		m.t.FailNow()
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience.Long)
	defer cancel()
	reply, err := m.modern.Call(ctx, "resources/read", map[string]any{"uri": uri}, nil)
	if err != nil || !strings.Contains(string(reply.Result), want) {
		m.t.Fatalf("round %d: %s is %.300s, %v", m.rounds, uri, reply.Result, err)
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
	text := must.Get(os.ReadFile(auditFile(m.s.folder)))(m.t)
	for line := range strings.Lines(string(text)) {
		var r audit.Record
		must.Do(m.t, json.Unmarshal([]byte(line), &r))
		bytes[r.Who] += int64(len(line))
		if r.Who == modest {
			found[r.Trace] = true
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

package deploy_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
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
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// soakVariable is for how many seconds the soak runs; without it there is none.
const soakVariable = "NIX_SANDBOX_TEST_SOAK_SECONDS"

// anySecret is the secret of some principal, whose number it has.
var anySecret = regexp.MustCompile(`secret-of-([0-9]+)-[0-9]+`)

// caller is one principal of the soak. Its session "vault" holds a secret that nobody
// else may ever see.
type caller struct {
	t      *testing.T
	w      *world
	number int
	random *rand.Rand
	client *httpclient.Client
	secret string
	// drains is how many servers had been drained when the secret was written.
	drains int64
	*counts
}

// counts are of all callers.
type counts struct{ drained, calls, restarts, searches, found, hungUp atomic.Int64 }

// inspect fails the test where a text has the secret of somebody else.
func (c *caller) inspect(text string) {
	for _, match := range anySecret.FindAllStringSubmatch(text, -1) {
		if match[1] != strconv.Itoa(c.number) {
			c.t.Errorf("principal %d got %q of another one", c.number, match[0])
		}
	}
}

// notified inspects what comes before an answer.
func (c *caller) notified(m mcpclient.Message) { c.inspect(string(m.Line)) }

// call is one that must be answered.
func (c *caller) call(ctx context.Context, code, session string) (string, bool) {
	for {
		answer, err := c.client.RunWith(ctx, mcpclient.Arguments{Env: "bash", Code: code, Session: session}, map[string]any{"progressToken": c.number}, c.notified)
		switch {
		case ctx.Err() != nil:
			return "", false
		case sessionGone(err):
			if !c.begin(ctx) {
				return "", false
			}
		case err != nil || answer.IsError:
			c.t.Errorf("principal %d: error %v, %q", c.number, err, answer.Text())
			return "", false
		default:
			c.calls.Add(1)
			c.inspect(answer.Text())
			return answer.Texts()[0], true
		}
	}
}

// begin begins with a connection and an HTTP session of its own, in one of the eras.
func (c *caller) begin(ctx context.Context) bool {
	c.client = c.w.client(c.number, version(c.random.IntN(2)))
	if err := c.client.Initialize(ctx); err != nil && ctx.Err() == nil {
		c.t.Errorf("principal %d begins: %v", c.number, err)
		return false
	}
	return ctx.Err() == nil
}

// check reads the secret, which is the caller's own, or gone with its server.
func (c *caller) check(ctx context.Context) {
	before := c.drained.Load()
	text, ok := c.call(ctx, `echo "[$secret]"`, "vault")
	if !ok {
		return
	}
	switch got := strings.TrimSpace(text); {
	case got == "["+c.secret+"]" && c.secret != "":
		return
	case got != "[]":
		c.t.Errorf("principal %d found %q in its session, want %q", c.number, got, c.secret)
	case c.secret != "" && c.drains == c.drained.Load():
		c.t.Errorf("principal %d lost its secret, and no server ended since", c.number)
	case c.secret != "":
		c.restarts.Add(1)
	}
	secret := fmt.Sprintf("secret-of-%d-%d", c.number, c.random.Uint64())
	if _, ok := c.call(ctx, "secret="+secret+"; mkdir -p outputs; echo $secret > outputs/secret; echo", "vault"); ok {
		c.secret, c.drains = secret, before
	}
}

// read reads the file of the caller's session by the address that each of them has.
func (c *caller) read(ctx context.Context) {
	reply, err := c.client.Call(ctx, "resources/read", map[string]any{"uri": "sandbox://vault/outputs/secret"}, nil)
	if err != nil || ctx.Err() != nil {
		return // there is no such session on a server that is new
	}
	text := string(reply.Line)
	if !anySecret.MatchString(text) {
		c.t.Errorf("principal %d read %q", c.number, text)
	}
	c.inspect(text)
	c.calls.Add(1)
}

// search looks for secrets wherever code can look, in the caller's session or in a sandbox
// of its own. Inspect says whether one of them is another's.
func (c *caller) search(ctx context.Context, session string) {
	text, ok := c.call(ctx, `{ set; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; grep -rhas secret-of- /workspace /tmp /dev/shm /run; } 2>/dev/null | grep -aoE 'secret-of-[0-9]+-[0-9]+' | sort -u; echo`, session)
	if !ok {
		return
	}
	c.searches.Add(1)
	if anySecret.MatchString(text) {
		c.found.Add(1)
	}
}

// hangUp ends a call by hanging up, or by a notification.
func (c *caller) hangUp(ctx context.Context, notify bool) {
	c.hungUp.Add(1)
	arguments := mcpclient.Arguments{Env: "bash", Code: "echo $secret; sleep 1", Session: "other"}
	meta := map[string]any{"progressToken": c.number}
	short, cancel := context.WithTimeout(ctx, time.Duration(10+c.random.IntN(200))*time.Millisecond)
	defer cancel()
	if !notify || c.client.IsStateless() {
		_, _ = c.client.RunWith(short, arguments, meta, c.notified)
		return
	}
	id := c.client.NextID()
	context.AfterFunc(short, func() {
		_ = c.client.Notify(ctx, "notifications/cancelled", map[string]any{"requestId": id, "reason": "soak"})
	})
	bounded, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	params := mcpclient.RunParams(arguments)
	params["_meta"] = meta
	reply, _ := c.client.CallAs(bounded, id, "tools/call", params, c.notified)
	c.inspect(string(reply.Line))
}

// dawdle reads a large answer slowly, and then not at all.
func (c *caller) dawdle(ctx context.Context) {
	params := mcpclient.RunParams(mcpclient.Arguments{Env: "bash", Code: "head -c 60000 /dev/zero | tr '\\0' x", Session: "other"})
	message, err := c.client.Message(c.client.NextID(), "tools/call", params)
	if err != nil {
		c.t.Error(err)
		return
	}
	response, err := c.client.Post(ctx, "tools/call", "run", message)
	if err != nil {
		return
	}
	defer response.Body.Close()
	for range 4 {
		if _, err := io.CopyN(io.Discard, response.Body, 1000); err != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// resources are what a server has. Memory is in bytes.
type resources struct{ processes, sandboxes, descriptors, goroutines, memory int64 }

// resources asks the metrics of a server, and the machine.
func (w *world) resources(t *testing.T, i int) resources {
	t.Helper()
	pid := w.servers[i].Process.Pid
	var r resources
	for _, child := range procfs.Descendants(pid) {
		r.processes++
		if one, err := procfs.Read(child); err == nil && one.Parent == pid {
			r.sandboxes++
		}
	}
	r.descriptors = int64(must.Get(procfs.Descriptors(pid))(t))
	r.memory = must.Get(procfs.Memory(pid))(t)
	// A connection that is kept would be among the resources of one measurement alone.
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.metrics(i)+"/metrics", nil))(t)
	request.Close = true
	response := must.Get(http.DefaultClient.Do(request))(t)
	defer response.Body.Close()
	text := must.Get(io.ReadAll(response.Body))(t)
	found := goroutines.FindSubmatch(text)
	if found == nil {
		t.Fatalf("the metrics say nothing of goroutines: %s", text)
	}
	r.goroutines = must.Get(strconv.ParseInt(string(found[1]), 10, 64))(t)
	return r
}

var (
	goroutines = regexp.MustCompile(`(?m)^nix_sandbox_goroutines ([0-9]+)$`)
	metricsAt  = regexp.MustCompile(`msg=metrics address=(\S+)`)
)

// metrics is where a server has its metrics.
func (w *world) metrics(i int) string { return metricsAt.FindStringSubmatch(w.logs[i].String())[1] }

func TestSoak_ManyPrincipalsBehindHAProxy(t *testing.T) {
	t.Parallel()
	text := os.Getenv(soakVariable)
	if text == "" {
		t.Skip(soakVariable + " does not say for how many seconds")
	}
	program := undertest.Server(t)
	if _, err := exec.LookPath("haproxy"); err != nil {
		t.Skip("haproxy is not installed")
	}
	seconds := must.Get(strconv.Atoi(text))(t)
	random := seed.New(t)
	w := &world{tokens: tokenFile(t), servers: make([]*exec.Cmd, 2), logs: make([]*lines, 2), addresses: []string{"127.0.0.1:0", "127.0.0.1:0"}}
	begin := func(i int) {
		w.servers[i], w.logs[i], w.addresses[i] = serveAs(t, exec.Command(program, "serve", "--http", w.addresses[i]), "NIX_SANDBOX_TOKENS="+w.tokens, "NIX_SANDBOX_METRICS=127.0.0.1:0")
	}
	begin(0)
	begin(1)
	// A server that nobody calls has the sandboxes that it keeps ready, and no others.
	// Each is a child of the server, and has bubblewrap, the agent and an interpreter.
	const eachHas = 3
	var ready int64
	for _, fields := range undertest.Environments(t) {
		if count, ok := fields["prewarm"].(float64); ok {
			ready += int64(count)
		}
	}
	before := make([]resources, 2)
	for i := range w.servers {
		patience.Wait(t, 2*time.Minute, func() string {
			return fmt.Sprintf("server %d has %+v, want %d sandboxes of %d processes", i+1, before[i], ready, eachHas)
		}, func() bool {
			before[i] = w.resources(t, i)
			return before[i].sandboxes == ready && before[i].processes == eachHas*ready
		})
	}
	w.url = "http://" + w.proxy(t, http.DefaultClient, "http") + "/mcp"

	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second+10*time.Minute)
	defer cancel()
	all := &counts{}
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range principals {
		c := &caller{t: t, w: w, number: i, random: rand.New(rand.NewPCG(random.Uint64(), 0)), counts: all}
		running.Go(func() {
			if !c.begin(ctx) {
				return
			}
			for {
				select {
				case <-stop:
					c.client.HTTP.CloseIdleConnections()
					return
				default:
				}
				switch n := c.random.IntN(20); {
				case n < 10:
					c.check(ctx)
				case n < 12:
					c.search(ctx, []string{"vault", ""}[n-10])
				case n < 14:
					c.read(ctx)
				case n < 17:
					c.hangUp(ctx, n == 16)
				case n < 18:
					c.dawdle(ctx)
				default:
					c.client.HTTP.CloseIdleConnections()
					if !c.begin(ctx) {
						return
					}
				}
			}
		})
	}
	half := time.Duration(seconds) * time.Second / 2
	var ended []*lines
	for i := range w.servers {
		for begun := time.Now(); time.Since(begun) < half && !t.Failed(); {
			for _, server := range w.servers {
				must.Do(t, server.Process.Signal(syscall.SIGHUP))
			}
			time.Sleep(min(half, 2*time.Second))
		}
		// Its callers find their secrets gone, or not yet.
		all.drained.Add(1)
		w.drain(t, i)
		all.drained.Add(1)
		ended = append(ended, w.logs[i])
		begin(i)
	}
	close(stop)
	running.Wait()
	t.Logf("%d calls were answered and %d hung up; %d searches found %d secrets, all of their own; %d secrets went with their server",
		all.calls.Load(), all.hungUp.Load(), all.searches.Load(), all.found.Load(), all.restarts.Load())
	if all.calls.Load() < principals || all.found.Load() == 0 {
		t.Errorf("there were %d calls, and %d secrets were found", all.calls.Load(), all.found.Load())
	}
	for i := range w.servers {
		var now resources
		patience.Wait(t, 3*time.Minute, func() string {
			return fmt.Sprintf("server %d has %+v, and had %+v before:\n%s", i+1, now, before[i], processes(w.servers[i].Process.Pid))
		}, func() bool {
			now = w.resources(t, i)
			return now.sandboxes <= before[i].sandboxes && now.processes <= before[i].processes && now.descriptors <= before[i].descriptors &&
				now.goroutines <= before[i].goroutines && now.memory <= before[i].memory+soakMemory
		})
		t.Logf("server %d has %+v, and had %+v before; at most %d MB of memory", i+1, now, before[i], must.Get(procfs.PeakMemory(w.servers[i].Process.Pid))(t)>>20)
	}
	for _, log := range append(ended, w.logs...) {
		if found := anySecret.FindString(log.String()); found != "" {
			t.Errorf("a server's log has %q", found)
		}
	}
}

// soakMemory is what Go's runtime may keep of memory that nothing uses, in bytes.
const soakMemory = 24 << 20

// processes describes the processes that a server started.
func processes(pid int) string {
	var text strings.Builder
	for _, child := range procfs.Descendants(pid) {
		if one, err := procfs.Read(child); err == nil {
			fmt.Fprintf(&text, "%d, child of %d: %.100s\n", child, one.Parent, one.Command())
		}
	}
	return text.String()
}

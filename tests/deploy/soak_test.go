package deploy_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
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
)

// soakVariable is for how many seconds the soak runs; without it there is none.
const soakVariable = "NIX_SANDBOX_TEST_SOAK_SECONDS"

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
	drains   int64
	drained  *atomic.Int64
	calls    *atomic.Int64
	restarts *atomic.Int64
}

// call is one that must be answered.
func (c *caller) call(ctx context.Context, code, session string) (string, bool) {
	for {
		answer, err := c.client.Run(ctx, mcpclient.Arguments{Env: "bash", Code: code, Session: session})
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
	text := string(reply.Result)
	if i := strings.Index(text, "secret-of-"); i < 0 || !strings.HasPrefix(text[i:], fmt.Sprintf("secret-of-%d-", c.number)) {
		c.t.Errorf("principal %d read %q", c.number, text)
	}
	c.calls.Add(1)
}

// hangUp ends a call by hanging up, or by a notification.
func (c *caller) hangUp(ctx context.Context, notify bool) {
	short, cancel := context.WithTimeout(ctx, time.Duration(10+c.random.IntN(200))*time.Millisecond)
	defer cancel()
	if !notify || c.client.IsStateless() {
		_, _ = c.client.Run(short, mcpclient.Arguments{Env: "bash", Code: "sleep 1", Session: "other"})
		return
	}
	id := c.client.NextID()
	context.AfterFunc(short, func() {
		_ = c.client.Notify(ctx, "notifications/cancelled", map[string]any{"requestId": id, "reason": "soak"})
	})
	bounded, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	_, _ = c.client.CallAs(bounded, id, "tools/call", mcpclient.RunParams(mcpclient.Arguments{Env: "bash", Code: "sleep 1", Session: "other"}), nil)
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

// resources are what a server holds.
type resources struct{ descriptors, processes int }

func held(pid int) (resources, error) {
	descriptors, err := procfs.Descriptors(pid)
	return resources{descriptors, len(procfs.Descendants(pid))}, err
}

func TestSoak_ManyPrincipalsBehindHAProxy(t *testing.T) {
	t.Parallel()
	text := os.Getenv(soakVariable)
	if text == "" {
		t.Skip(soakVariable + " does not say for how many seconds")
	}
	seconds := must.Get(strconv.Atoi(text))(t)
	random := seed.New(t)
	w := servers(t, nil, nil)
	// When the pool is full.
	time.Sleep(2 * time.Second)
	before := []resources{must.Get(held(w.servers[0].Process.Pid))(t), must.Get(held(w.servers[1].Process.Pid))(t)}

	ctx, cancel := context.WithTimeout(t.Context(), patience.For(time.Duration(seconds)*time.Second+5*time.Minute))
	defer cancel()
	var drained, calls, restarts atomic.Int64
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range principals {
		c := &caller{t: t, w: w, number: i, random: rand.New(rand.NewPCG(random.Uint64(), 0)), drained: &drained, calls: &calls, restarts: &restarts}
		running.Go(func() {
			if !c.begin(ctx) {
				return
			}
			for {
				select {
				case <-stop:
					_ = c.client.End(ctx)
					return
				default:
				}
				switch n := c.random.IntN(20); {
				case n < 12:
					c.check(ctx)
				case n < 14:
					c.read(ctx)
				case n < 17:
					c.hangUp(ctx, n == 16)
				case n < 18:
					c.dawdle(ctx)
				default:
					_ = c.client.End(ctx)
					if !c.begin(ctx) {
						return
					}
				}
			}
		})
	}
	half := time.Duration(seconds) * time.Second / 2
	for i := range w.servers {
		for begun := time.Now(); time.Since(begun) < half && !t.Failed(); {
			for _, server := range w.servers {
				must.Do(t, server.Process.Signal(syscall.SIGHUP))
			}
			time.Sleep(min(half, 2*time.Second))
		}
		// Its callers find their secrets gone, or not yet.
		drained.Add(1)
		w.drain(t, i)
		drained.Add(1)
		server, log, _ := serve(t, w.tokens, w.addresses[i])
		w.servers[i], w.logs[i] = server, log
		time.Sleep(2 * time.Second)
		before[i] = must.Get(held(server.Process.Pid))(t)
	}
	close(stop)
	running.Wait()
	t.Logf("%d calls were answered, and %d secrets went with their server", calls.Load(), restarts.Load())
	if calls.Load() < principals {
		t.Errorf("there were %d calls", calls.Load())
	}
	for i, server := range w.servers {
		var now resources
		patience.Wait(t, time.Minute, func() string {
			return fmt.Sprintf("server %d holds %+v, and held %+v before", i+1, now, before[i])
		}, func() bool {
			var err error
			now, err = held(server.Process.Pid)
			// The pool keeps more sandboxes after many calls, and HAProxy a few connections.
			return err == nil && now.processes <= before[i].processes+12 && now.descriptors <= before[i].descriptors+40
		})
		t.Logf("server %d holds %+v, and held %+v before; at most %d MB of memory", i+1, now, before[i], must.Get(procfs.PeakMemory(server.Process.Pid))(t)>>20)
	}
}

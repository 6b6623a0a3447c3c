package deploy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// longCall is longer than the proxy of deploy/ waits for a server that sends nothing.
const longCall = 70 * time.Second

// begin starts HAProxy in front of the server, at an address.
func begin(t *testing.T, front, server string) {
	t.Helper()
	if exec.Command("haproxy", "-v").Run() != nil {
		t.Skip("haproxy is not installed")
	}
	cmd := exec.Command("haproxy", "-f", "../../dist/deploy/haproxy.cfg")
	cmd.Env = append(os.Environ(), "MCP_ADDRESS="+front, "MCP_FIRST="+server, "MCP_SECOND="+server)
	log := start(t, cmd)
	patience.Wait(t, patience.Long, log.String, func() bool {
		response, err := http.Get("http://" + front + "/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

// awaited is what a call through a proxy runs until the test ends it.
func awaited(random *rand.Rand) (code, command string) {
	word := fmt.Sprintf("1000.%d", random.Uint32())
	return "echo begun; sleep " + word + "; echo end", "sleep\x00" + word
}

// A call that takes longer than a proxy waits for a silent server is answered, with and
// without progress, and what comes before the answer comes at once. A call whose client
// takes no stream shows that the proxy would end it.
func TestProxy_PassesLongCalls(t *testing.T) {
	t.Parallel()
	program := undertest.Server(t)
	random := seed.New(t)
	environments := undertest.Environments(t)
	for _, fields := range environments {
		fields["timeout_seconds"], fields["prewarm"] = 600, 0
	}
	metadata := mcptest.MetadataWith(t, environments, map[string]any{"serve": mcptest.Serve(map[string]any{"lame_duck_seconds": 0, "drain_seconds": 1, "calls_at_once": 64})})
	_, _, address := serveAs(t, exec.Command(program, "serve", "--http", "127.0.0.1:0"), "NIX_SANDBOX_TOKENS="+tokenFile(t), "NIX_SANDBOX_METADATA="+metadata)
	front := freeAddress(t)
	begin(t, front, address)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	client := func(version string) *httpclient.Client {
		return &httpclient.Client{URL: "http://" + front + "/mcp", Token: token(0), Version: version, HTTP: &http.Client{Transport: &http.Transport{}}}
	}
	var commands []string
	var heard, calls sync.WaitGroup
	for _, version := range []string{mcpclient.Newest, mcpclient.Stateless} {
		for _, hasToken := range []bool{true, false} {
			c := client(version)
			must.Do(t, c.Initialize(ctx))
			code, command := awaited(random)
			commands = append(commands, command)
			var meta map[string]any
			if hasToken {
				meta = map[string]any{"progressToken": "p"}
				heard.Add(1)
			}
			calls.Go(func() {
				first := sync.OnceFunc(heard.Done)
				answer, err := c.RunWith(ctx, mcpclient.Arguments{Env: "bash", Code: code}, meta, func(mcpclient.Message) { first() })
				if hasToken {
					first() // of a call that failed
				}
				if err != nil || !strings.HasPrefix(answer.Text(), "begun\nend\n") {
					t.Errorf("version %s, progress %v: error %v, %q", version, hasToken, err, answer.Text())
				}
			})
		}
	}
	calls.Go(func() { t.Logf("without a stream: status %d", silent(ctx, t, client(mcpclient.Stateless))) })
	patience.Wait(t, patience.Long, func() string { return "the calls do not run" }, func() bool { return sleeping(commands) == len(commands) })
	longEnough := time.After(longCall)
	// While the calls still run, the progress of those that asked for it comes.
	heard.Wait()
	<-longEnough
	for _, command := range commands {
		for _, pid := range procfs.WithCommand(command) {
			must.Do(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	calls.Wait()
}

// Through a proxy too, who hangs up cancels the call in the newest revision, and only there. A proxy
// that notices only when the server writes its first comment, after 10 s, is too late: a call of 8 s
// is answered before.
func TestProxy_PassesOnThatAClientHangsUp(t *testing.T) {
	t.Parallel()
	program := undertest.Server(t)
	random := seed.New(t)
	_, _, address := serveAs(t, exec.Command(program, "serve", "--http", "127.0.0.1:0"), "NIX_SANDBOX_TOKENS="+tokenFile(t))
	front := freeAddress(t)
	begin(t, front, address)
	for _, version := range []string{mcpclient.Newest, mcpclient.Stateless} {
		c := &httpclient.Client{URL: "http://" + front + "/mcp", Token: token(0), Version: version, HTTP: &http.Client{Transport: &http.Transport{}}}
		must.Do(t, c.Initialize(t.Context()))
		code, command := awaited(random)
		ctx, hangUp := context.WithCancel(t.Context())
		var call sync.WaitGroup
		call.Go(func() { _, _ = c.Run(ctx, mcpclient.Arguments{Env: "bash", Code: code}) })
		patience.Wait(t, patience.Long, func() string { return "the call does not run" }, func() bool { return sleeping([]string{command}) == 1 })
		hangUp()
		call.Wait()
		must.Get(c.Run(t.Context(), mcpclient.Arguments{Env: "bash", Code: "sleep 8"}))(t)
		if goesOn := sleeping([]string{command}) == 1; goesOn != (version == mcpclient.Newest) {
			t.Errorf("version %s: the call that was left goes on: %v", version, goesOn)
		}
		for _, pid := range procfs.WithCommand(command) {
			must.Do(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
}

// sleeping is how many of the commands run.
func sleeping(commands []string) int {
	n := 0
	for _, command := range commands {
		if slices.ContainsFunc(procfs.WithCommand(command), procfs.Runs) {
			n++
		}
	}
	return n
}

// silent makes a call whose client takes no stream, so that nothing comes before its
// answer, and returns the status that the proxy gives it in the end.
func silent(ctx context.Context, t *testing.T, c *httpclient.Client) int {
	message, err := c.Message(1, "tools/call", mcpclient.RunParams(mcpclient.Arguments{Env: "bash", Code: "sleep 300"}))
	if err != nil {
		t.Error(err)
		return 0
	}
	r, err := c.Request(ctx, http.MethodPost, bytes.NewReader(message))
	if err != nil {
		t.Error(err)
		return 0
	}
	for name, value := range map[string]string{"Accept": "application/json", "Content-Type": "application/json", "Mcp-Method": "tools/call", "Mcp-Name": "run"} {
		r.Header.Set(name, value)
	}
	response, err := c.Do(r)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusGatewayTimeout && response.StatusCode != http.StatusBadGateway {
		body, _ := io.ReadAll(response.Body)
		t.Errorf("a call that sends nothing: status %d, want that of a proxy that gave up: %.200s", response.StatusCode, body)
	}
	return response.StatusCode
}

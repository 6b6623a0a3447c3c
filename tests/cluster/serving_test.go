package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// testServing makes true in the cluster what docs/serving.md says: the rows of the table in
// docs/cluster.md that other tests do not have.
func testServing(t *testing.T, c *cluster, address string) {
	for _, row := range []struct {
		name string
		test func(*testing.T, *cluster, string)
	}{
		{"revisions of the protocol", testRevisions}, {"no way to tell who calls", testNoTokens},
		{"who calls", testWhoCalls}, {"origins", testOrigins}, {"what belongs to whom", testBelongings},
		{"a lost HTTP session", testLostSession}, {"hanging up", testHangingUp}, {"a long call", testLongCall},
		{"quotas", testQuotas}, {"a flood of one", testFlood},
	} {
		t.Run(row.name, func(t *testing.T) { row.test(t, c, address) })
	}
}

// textOf returns the text of an answer, which has to come.
func textOf(t *testing.T, client *httpclient.Client, session, code string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience.Long)
	defer cancel()
	answer, err := client.Run(ctx, mcpclient.Arguments{Env: "bash", Session: session, Code: code})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Text()
}

// statusOf returns the status with which a call is refused, or 0.
func statusOf(t *testing.T, client *httpclient.Client) int {
	t.Helper()
	_, err := client.Run(t.Context(), mcpclient.Arguments{Env: "bash", Code: "true"})
	var status *httpclient.StatusError
	if err != nil && !errors.As(err, &status) {
		t.Fatal(err)
	}
	if status == nil {
		return 0
	}
	return status.Status
}

// earlier returns a client of the revisions with a handshake.
func earlier(t *testing.T, address, token string) *httpclient.Client {
	t.Helper()
	client := at(service, address, token)
	client.Version = mcptest.Newest
	if err := client.Initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	return client
}

func testRevisions(t *testing.T, _ *cluster, address string) {
	for _, client := range []*httpclient.Client{at(service, address, tokenOf(0)), earlier(t, address, tokenOf(0))} {
		if text := textOf(t, client, "", "echo $((6 * 7))"); text != "42\n" {
			t.Errorf("revision %s: %q", client.Version, text)
		}
	}
}

// A server without tokens does not start, as its probes and its log show.
func testNoTokens(t *testing.T, c *cluster, _ string) {
	c.kubectl("", "run", "open", "--image=nix-sandbox-mcp:0.1.0", "--restart=Never", "--", "serve", "--http", "0.0.0.0:8080")
	c.kubectl("", "wait", "--for=jsonpath={.status.phase}=Failed", "--timeout=120s", "pod/open")
	if log := c.kubectl("", "logs", "open"); !strings.Contains(log, "there is no way to tell who calls") || !strings.Contains(log, "NIX_SANDBOX_TOKENS") {
		t.Errorf("its log is %q", log)
	}
	c.kubectl("", "delete", "pod", "open")
}

func testWhoCalls(t *testing.T, _ *cluster, address string) {
	for _, token := range []string{"", "nsm_made-up"} {
		stranger := at(service, address, token)
		stranger.Header = http.Header{"X-Remote-User": {nameOf(0)}}
		if status := statusOf(t, stranger); status != http.StatusUnauthorized {
			t.Errorf("with the token %q: status %d, want 401", token, status)
		}
	}
	if status := statusOf(t, at(service, address, tokenOf(0))); status != 0 {
		t.Errorf("with a token: status %d", status)
	}
}

func testOrigins(t *testing.T, _ *cluster, address string) {
	client := at(service, address, tokenOf(0))
	client.Header = http.Header{"Origin": {"https://evil.example"}}
	if status := statusOf(t, client); status != http.StatusForbidden {
		t.Errorf("from another page: status %d, want 403", status)
	}
}

// Two clients with one token have one session of a name; another principal has its own, whatever
// it says of itself.
func testBelongings(t *testing.T, _ *cluster, address string) {
	for i := range principals {
		textOf(t, at(service, address, tokenOf(i)), "mine", "who="+nameOf(i))
	}
	for i := range principals {
		client := at(service, address, tokenOf(i))
		client.Header = http.Header{"X-Remote-User": {nameOf((i + 1) % principals)}}
		if text := textOf(t, client, "mine", "echo $who"); text != nameOf(i)+"\n" {
			t.Errorf("the session of %s has %q", nameOf(i), text)
		}
	}
}

func testLostSession(t *testing.T, _ *cluster, address string) {
	client := earlier(t, address, tokenOf(1))
	textOf(t, client, "kept", "x=1")
	client.SetSession("made-up")
	if _, err := client.Run(t.Context(), mcpclient.Arguments{Env: "bash", Code: "true"}); err == nil || !strings.Contains(err.Error(), "no such HTTP session") {
		t.Errorf("an HTTP session that is not: %v", err)
	}
	if err := client.Initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := textOf(t, client, "kept", "echo $x"); text != "1\n" {
		t.Errorf("the next one finds %q in the session of the tool", text)
	}
}

// A client that hangs up cancels its call in the newest revision, and not in the others.
func testHangingUp(t *testing.T, _ *cluster, address string) {
	for _, test := range []struct {
		client *httpclient.Client
		left   string
	}{{at(service, address, tokenOf(2)), "no\n"}, {earlier(t, address, tokenOf(2)), "yes\n"}} {
		other := at(service, address, tokenOf(2))
		session := "hangs-" + test.client.Version
		ctx, cancel := context.WithCancel(t.Context())
		var call sync.WaitGroup
		call.Go(func() {
			// The files of a session are shared by its calls, which wait for each other.
			_, _ = test.client.Run(ctx, mcpclient.Arguments{Env: "bash", Session: session, Code: "touch began; sleep 5; touch ended"})
		})
		// It has begun when another session's call, which comes later, was answered.
		textOf(t, other, "", "sleep 2")
		cancel()
		call.Wait()
		if text := textOf(t, other, session, "[ -e ended ] && echo yes || echo no"); !strings.HasPrefix(text, test.left) {
			t.Errorf("revision %s: the call that was left has ended: %q, want %q", test.client.Version, text, test.left)
		}
	}
}

// Twenty-five seconds without an output: HAProxy waits for thirty-five, and the server's comments
// are what it waits for.
func testLongCall(t *testing.T, _ *cluster, address string) {
	if text := textOf(t, at(service, address, tokenOf(3)), "", "sleep 25; echo done"); text != "done\n" {
		t.Errorf("a long call answers %q", text)
	}
}

// Of a principal who has no other sessions, and needs none later.
func testQuotas(t *testing.T, c *cluster, address string) {
	client := at(service, address, c.token("alice"))
	for i := range 9 {
		text := textOf(t, client, fmt.Sprint("session-", i), "echo here")
		if strings.HasPrefix(text, "all 8 sessions are in use") {
			return
		}
		if text != "here\n" {
			t.Fatalf("session %d: %q", i, text)
		}
	}
	t.Error("a ninth session is not refused")
}

func testFlood(t *testing.T, _ *cluster, address string) {
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	for range 64 {
		flood.Go(func() {
			client := at(service, address, tokenOf(5))
			for ctx.Err() == nil {
				_, _ = client.Run(ctx, mcpclient.Arguments{Env: "bash", Code: "sleep 1"})
			}
		})
	}
	defer flood.Wait()
	defer cancel()
	var slowest time.Duration
	for i := range principals {
		began := time.Now()
		if text := textOf(t, at(service, address, tokenOf(i)), "mine", "echo here"); i != 5 && text != "here\n" && !strings.HasPrefix(text, "here\n[") {
			t.Errorf("meanwhile %s hears %q", nameOf(i), text)
		}
		if i != 5 {
			slowest = max(slowest, time.Since(began))
		}
	}
	t.Logf("beside 64 callers with one token, the slowest call of others took %.2f s", slowest.Seconds())
}

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/jailtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// remote is a published library's server, with a header that requests must have.
func remote(t *testing.T) *httptest.Server {
	t.Helper()
	s := mcpserver.NewMCPServer("remote", "1")
	s.AddTool(mcp.NewTool("add", mcp.WithNumber("a", mcp.Required()), mcp.WithNumber("b", mcp.Required())), func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText(fmt.Sprint(r.GetFloat("a", 0) + r.GetFloat("b", 0))), nil
	})
	s.AddTool(mcp.NewTool("large"), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText(strings.Repeat("x", 2<<20)), nil
	})
	s.AddTool(mcp.NewTool("wait"), func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	transport := mcpserver.NewStreamableHTTPServer(s)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer key" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		transport.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

func connect(t *testing.T, url string) (*Client, error) {
	t.Helper()
	spec := Spec{URL: url, Headers: map[string]string{"Authorization": "Bearer key"}, ResultBytes: 1 << 20}
	client, _, err := Start(t.Context(), spec, slog.New(slog.DiscardHandler))
	if err == nil {
		t.Cleanup(client.Close)
	}
	return client, err
}

// A list of tools is bounded as a whole, and nothing but the tools' hashes is kept of it.
func TestStart_BoundsTheList(t *testing.T) {
	for pages, want := range map[int]string{3: "", 10: "its list of tools has more than 4 MiB"} {
		served := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var m struct {
				ID     json.RawMessage
				Method string
			}
			_ = json.NewDecoder(r.Body).Decode(&m) // a request without a body has no id
			result := fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"fat","version":"1"}}`, version)
			if m.Method == "tools/list" {
				next := ""
				if served++; served < pages {
					next = `,"nextCursor":"more"`
				}
				result = fmt.Sprintf(`{"tools":[{"name":"t%d","description":%q,"inputSchema":{"type":"object"}}]%s}`, served, strings.Repeat("x", 900<<10), next)
			}
			if len(m.ID) == 0 {
				w.WriteHeader(http.StatusAccepted)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
		}))
		defer s.Close()
		c, err := connect(t, s.URL)
		switch {
		case want != "":
			if err == nil || !strings.Contains(err.Error(), want) || served > 6 {
				t.Errorf("%d pages: %v after %d", pages, err, served)
			}
		case err != nil || len(c.hashes) != pages:
			t.Errorf("%d pages: %v, %v", pages, c, err)
		}
	}
}

func TestURL(t *testing.T) {
	c := must.Get(connect(t, remote(t).URL))(t)
	if hash, found := c.Hash("add"); len(c.hashes) != 3 || !found || hash == "" {
		t.Errorf("tools %v", c.hashes)
	}
	result, err := c.Call(t.Context(), "add", json.RawMessage(`{"a":1,"b":2}`))
	if err != nil || !strings.Contains(string(result), `"text":"3"`) {
		t.Errorf("%s, %v", result, err)
	}
	var refused *Error
	if _, err := c.Call(t.Context(), "nothing", json.RawMessage(`{}`)); !errors.As(err, &refused) {
		t.Errorf("a tool that there is not: %v", err)
	}
	// What is larger than an answer may be is not read, and the next call works.
	if result, err := c.Call(t.Context(), "large", json.RawMessage(`{}`)); err == nil {
		t.Errorf("an answer of %d bytes", len(result))
	}
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	if _, err := c.Call(ctx, "wait", json.RawMessage(`{}`)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
	if _, err := c.Call(t.Context(), "add", json.RawMessage(`{"a":1,"b":2}`)); err != nil {
		t.Error(err)
	}
}

// A server that outlives a call's time is asked whether it lives, and goes on if it does.
func TestCall_ThatLastsTooLong(t *testing.T) {
	behind, pinged := remote(t), make(chan struct{}, 1)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := must.Get(io.ReadAll(r.Body))(t)
		r.Body = io.NopCloser(bytes.NewReader(body))
		behind.Config.Handler.ServeHTTP(w, r)
		if strings.Contains(string(body), `"method":"ping"`) {
			pinged <- struct{}{}
		}
	}))
	t.Cleanup(front.Close)
	c := must.Get(connect(t, front.URL))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Call(ctx, "wait", json.RawMessage(`{}`)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	select {
	case <-pinged:
	case <-time.After(patience.Long):
		t.Error("nobody asks whether it lives")
	}
	if _, err := c.Call(t.Context(), "add", json.RawMessage(`{"a":1,"b":2}`)); err != nil {
		t.Error(err)
	}
}

func TestMain(m *testing.M) { os.Exit(jailtest.Main(m)) }

// started starts a command as a server in a sandbox, and waits for its end.
func started(t *testing.T, command string) *stdio {
	t.Helper()
	exec := jailtest.Sandbox{Args: []string{"serve", "--memory-mb", "128", "--pids", "64", "/bin/sh", "-c"}}.Write(t)
	s := must.Get(startJail(t.Context(), Spec{Exec: exec, Start: command, ResultBytes: 1000}, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { s.Close() })
	select {
	case <-s.done:
	case <-time.After(patience.Long):
		t.Fatal("it does not end")
	}
	return s
}

// A program's server ends with it, and a line that is no message is passed over.
func TestJail_EndsWithItsProgram(t *testing.T) {
	s := started(t, "echo hello; echo '{}'; echo no key >&2; exit 3")
	if s.reason == nil || !strings.Contains(s.reason.Error(), "exit status 3") || s.tail.String() != "no key" {
		t.Errorf("reason %v, log %q", s.reason, &s.tail)
	}
}

// A server that crosses a limit ends, and the error says which.
func TestJail_NamesTheLimit(t *testing.T) {
	s := started(t, `python3 -c 'import time; x = b"x" * (300 << 20); time.sleep(60)'`)
	if s.reason == nil || !strings.Contains(s.reason.Error(), "it was stopped: it used more than 128 MB of memory") {
		t.Errorf("reason %v", s.reason)
	}
}

// A redirect could lead to another host with the headers.
func TestURL_FollowsNoRedirect(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	server := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	if _, err := connect(t, server.URL); err == nil {
		t.Error("it started")
	}
}

// A server of a revision without a handshake refuses initialize, and has every request say what it is
// of.
func TestURL_WithoutAHandshake(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var message struct {
			ID     int             `json:"id"`
			Method string          `json:"method"`
			Params json.RawMessage `json:"params"`
		}
		must.Do(t, json.NewDecoder(r.Body).Decode(&message))
		w.Header().Set("Content-Type", "application/json")
		answer := map[string]any{"jsonrpc": "2.0", "id": message.ID}
		switch says := strings.Contains(string(message.Params), mcp.LATEST_PROTOCOL_VERSION); {
		case message.Method == "initialize":
			answer["error"] = map[string]any{"code": -32601, "message": "no handshake"}
		case !says || r.Header.Get("Mcp-Method") != message.Method || r.Header.Get("MCP-Protocol-Version") != mcp.LATEST_PROTOCOL_VERSION:
			answer["error"] = map[string]any{"code": -32600, "message": "of which revision?"}
		case message.Method == "tools/list":
			answer["result"] = map[string]any{"tools": []any{map[string]any{"name": "x", "inputSchema": map[string]any{"type": "object"}}}}
		default:
			answer["result"] = map[string]any{"content": []any{}}
		}
		must.Do(t, json.NewEncoder(w).Encode(answer))
	}))
	defer server.Close()
	c := must.Get(connect(t, server.URL))(t)
	if _, err := c.Call(t.Context(), "x", json.RawMessage(`{}`)); err != nil {
		t.Error(err)
	}
}

// The hash of a tool does not depend on the order of keys, and on all else.
func TestHash(t *testing.T) {
	base := Tool{Name: "a", Description: "b", Input: json.RawMessage(`{"type":"object","x":1}`)}
	same := base
	same.Input = json.RawMessage(`{ "x": 1, "type": "object" }`)
	hash := must.Get(base.hash())(t)
	if got := must.Get(same.hash())(t); got != hash {
		t.Error("another order is another hash")
	}
	for name, change := range map[string]func(*Tool){
		"name":        func(t *Tool) { t.Name = "c" },
		"description": func(t *Tool) { t.Description = "b " },
		"input":       func(t *Tool) { t.Input = json.RawMessage(`{"type":"object","x":2}`) },
		"output":      func(t *Tool) { t.Output = json.RawMessage(`{}`) },
		"hint":        func(t *Tool) { t.ReadOnly = true },
		"number":      func(t *Tool) { t.Input = json.RawMessage(`{"type":"object","x":1.0}`) },
	} {
		other := base
		change(&other)
		if must.Get(other.hash())(t) == hash {
			t.Errorf("another %s has the same hash", name)
		}
	}
}

// A server at a URL ends with Close, and when it does not know the session any more.
func TestURL_Ends(t *testing.T) {
	hasEnded := func(c *Client) bool {
		select {
		case <-c.Ended():
			return true
		default:
			return false
		}
	}
	behind := remote(t)
	var forgets atomic.Bool
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if forgets.Load() {
			http.NotFound(w, r)
			return
		}
		behind.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	closed, forgotten := must.Get(connect(t, front.URL))(t), must.Get(connect(t, front.URL))(t)
	if hasEnded(closed) || hasEnded(forgotten) {
		t.Fatal("it ends by itself")
	}
	closed.Close()
	forgets.Store(true)
	_, err := forgotten.Call(t.Context(), "add", json.RawMessage(`{"a":1,"b":2}`))
	if err == nil || !hasEnded(closed) || !hasEnded(forgotten) {
		t.Errorf("closed %v, forgotten %v, the call's error is %v", hasEnded(closed), hasEnded(forgotten), err)
	}
}

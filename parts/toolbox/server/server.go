// Package server is a client of the MCP servers whose tools code may call. It knows their tools'
// schemas and hashes, and no rules about who may call what: package gate has these.
//
// Everything that a server sends is untrusted and bounded, and every wait ends.
package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

const (
	// version is the revision of MCP that is offered to servers. Those of a later one answer it too,
	// or say which they have.
	version = "2025-11-25"
	// StartTimeout bounds the start of a server with its list of tools.
	StartTimeout = 60 * time.Second
	// maxTools, maxPages and maxList, in bytes, bound the list.
	maxTools = 1000
	maxPages = 200
	maxList  = 4 << 20
	// pingTimeout is how long a server may take for a ping after a call that it did not answer.
	pingTimeout = 5 * time.Second
)

// Spec is a server: one in a jail, or a URL.
type Spec struct {
	// Exec is the bin/session-run of its artifact, and Start the code that starts it there. Secrets
	// name variables of this process that Exec reads.
	Exec    string   `json:"exec"`
	Start   string   `json:"start"`
	Secrets []string `json:"secrets"`
	// URL is that of a server with Streamable HTTP, and Headers are what each request to it has.
	// A value is the name of a variable of this process.
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	// ResultBytes bounds an answer.
	ResultBytes int `json:"-"`
}

// Tool is a tool as its server describes it.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Input       json.RawMessage `json:"inputSchema"`
	Output      json.RawMessage `json:"outputSchema,omitempty"`
	// Hint says that the server calls it read-only. It is shown and never believed.
	ReadOnly bool `json:"readOnlyHint,omitempty"`
	// Hash is that of everything above.
	Hash string `json:"sha256"`
}

// Client is a connection to a running server. Its methods may be called at the same time.
type Client struct {
	transport transport.Interface
	log       *slog.Logger
	last      atomic.Int64
	meta      map[string]any    // of each request, for a server of stateless MCP
	hashes    map[string]string // of the tools that the server had at its start
	ended     chan struct{}
	end       func() // closes ended of a URL; a jail closes its own
}

// Start starts a server, or connects to it, and reads the list of its tools. The caller calls
// Close.
func Start(ctx context.Context, spec Spec, log *slog.Logger) (_ *Client, tools map[string]Tool, err error) {
	ctx, stop := context.WithTimeoutCause(ctx, StartTimeout, fmt.Errorf("it did not answer within %v", StartTimeout))
	defer stop()
	c := &Client{log: log, ended: make(chan struct{}), end: func() {}, hashes: map[string]string{}}
	if spec.URL != "" {
		c.end = sync.OnceFunc(func() { close(c.ended) })
		c.transport, err = overHTTP(spec)
	} else {
		var s *stdio
		if s, err = startJail(ctx, spec, log); err == nil {
			c.transport, c.ended = s, s.done
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if err = c.transport.Start(context.WithoutCancel(ctx)); err == nil {
		if err = c.greet(ctx); err == nil {
			tools, err = c.list(ctx)
		}
	}
	if err != nil {
		c.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, err
	}
	return c, tools, nil
}

// overHTTP returns the transport to a URL. It follows no redirect, which could lead to another
// host with the headers, and reads at most the largest answer.
func overHTTP(spec Spec) (transport.Interface, error) {
	client := &http.Client{
		Transport:     boundedBodies{http.DefaultTransport, int64(spec.ResultBytes) + 64<<10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return transport.NewStreamableHTTP(spec.URL, transport.WithHTTPBasicClient(client), transport.WithHTTPHeaders(spec.Headers))
}

type boundedBodies struct {
	http.RoundTripper
	most int64
}

func (b boundedBodies) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, b.most), response.Body}
	}
	return response, err
}

// greet agrees on a revision of MCP.
func (c *Client) greet(ctx context.Context) error {
	info := map[string]any{"name": command.Program, "version": command.Version()}
	result, err := c.request(ctx, string(mcp.MethodInitialize), map[string]any{
		"protocolVersion": version, "capabilities": struct{}{}, "clientInfo": info,
	})
	var refused *Error
	if errors.As(err, &refused) {
		// A server of stateless MCP.
		c.meta = map[string]any{
			mcp.MetaKeyProtocolVersion: mcp.LATEST_PROTOCOL_VERSION, mcp.MetaKeyClientCapabilities: struct{}{}, mcp.MetaKeyClientInfo: info,
		}
		c.speak(mcp.LATEST_PROTOCOL_VERSION)
		return nil
	}
	if err != nil {
		return err
	}
	var agreed struct {
		Version string `json:"protocolVersion"`
	}
	if err := json.Unmarshal(result, &agreed); err != nil {
		return fmt.Errorf("its answer to initialize is no object: %w", err)
	}
	c.speak(agreed.Version)
	return c.transport.SendNotification(ctx, mcp.JSONRPCNotification{JSONRPC: "2.0", Notification: mcp.Notification{Method: "notifications/initialized"}})
}

func (c *Client) speak(version string) {
	if over, ok := c.transport.(transport.HTTPConnection); ok {
		over.SetProtocolVersion(version)
	}
}

// list reads the tools, page by page. The client keeps their hashes alone: a server may describe
// them in megabytes.
func (c *Client) list(ctx context.Context) (map[string]Tool, error) {
	tools, params, left := map[string]Tool{}, map[string]any{}, maxList
	for range maxPages {
		result, err := c.request(ctx, string(mcp.MethodToolsList), params)
		if err != nil {
			return nil, fmt.Errorf("list its tools: %w", err)
		}
		if left -= len(result); left < 0 {
			return nil, fmt.Errorf("its list of tools has more than %d MiB", maxList>>20)
		}
		var page struct {
			Tools []struct {
				Tool
				Hints struct {
					ReadOnly bool `json:"readOnlyHint"`
				} `json:"annotations"`
			} `json:"tools"`
			Next string `json:"nextCursor"`
		}
		if err := json.Unmarshal(result, &page); err != nil {
			return nil, fmt.Errorf("its list of tools is wrong: %w", err)
		}
		for _, one := range page.Tools {
			one.ReadOnly = one.Hints.ReadOnly
			if one.Hash, err = one.hash(); err != nil {
				return nil, fmt.Errorf("its tool %q: %w", one.Name, err)
			}
			tools[one.Name], c.hashes[one.Name] = one.Tool, one.Hash
		}
		if len(tools) > maxTools {
			return nil, fmt.Errorf("it has more than %d tools", maxTools)
		}
		if page.Next == "" {
			return tools, nil
		}
		params["cursor"] = page.Next
	}
	return nil, fmt.Errorf("its list of tools has more than %d pages", maxPages)
}

// hash identifies what a tool says of itself, whatever the order of keys and the spaces in it.
func (t Tool) hash() (string, error) {
	canonical := func(raw json.RawMessage) any {
		var value any
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.UseNumber()
		_ = decoder.Decode(&value) // an empty text stays nil
		return value
	}
	text, err := json.Marshal([]any{t.Name, t.Description, canonical(t.Input), canonical(t.Output), t.ReadOnly})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// Hash returns the hash of a tool that the server had at its start.
func (c *Client) Hash(tool string) (hash string, found bool) {
	hash, found = c.hashes[tool]
	return hash, found
}

// Ended is closed when the server cannot be asked any more, before a call returns that says so. A
// server at a URL ends with Close, and when it has forgotten the session.
func (c *Client) Ended() <-chan struct{} { return c.ended }

// Error is what a server answered in place of a result.
type Error struct {
	Code    int
	Message string
}

func (e *Error) Error() string { return e.Message }

// Call calls a tool and returns its result as it came. The error is ctx's, an [*Error], or why
// the server cannot be asked.
func (c *Client) Call(ctx context.Context, tool string, arguments json.RawMessage) (json.RawMessage, error) {
	result, err := c.request(ctx, string(mcp.MethodToolsCall), map[string]any{"name": tool, "arguments": arguments})
	if errors.Is(err, context.DeadlineExceeded) {
		go c.probe()
	}
	return result, err
}

// probe ends a server that hangs, so that the next call starts it anew.
func (c *Client) probe() {
	defer guard.Recover(nil)
	ctx, stop := context.WithTimeout(context.Background(), pingTimeout)
	defer stop()
	if _, err := c.request(ctx, string(mcp.MethodPing), nil); err != nil && ctx.Err() != nil {
		c.Close()
	}
}

func (c *Client) request(ctx context.Context, method string, params map[string]any) (json.RawMessage, error) {
	if c.meta != nil {
		with := map[string]any{"_meta": c.meta}
		for name, value := range params {
			with[name] = value
		}
		params = with
	}
	request := transport.JSONRPCRequest{JSONRPC: "2.0", ID: mcp.NewRequestId(c.last.Add(1)), Method: method}
	if params != nil {
		request.Params = params
	}
	if c.meta != nil {
		text, err := json.Marshal(params)
		if err != nil {
			return nil, err
		}
		request.Header = http.Header{}
		for name, value := range mcp.StandardHeaders(mcp.LATEST_PROTOCOL_VERSION, mcp.MCPMethod(method), text) {
			request.Header.Set(name, value)
		}
	}
	response, err := c.transport.SendRequest(ctx, request)
	if errors.Is(err, transport.ErrSessionTerminated) {
		c.end()
	}
	switch {
	case err != nil:
		return nil, err
	case response.Error != nil:
		return nil, &Error{response.Error.Code, hostile.Message(response.Error.Message)}
	}
	return response.Result, nil
}

// Close ends the server, and waits for the end of its processes.
func (c *Client) Close() {
	c.end()
	c.transport.Close()
}

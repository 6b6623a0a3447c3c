// Package httpclient is a client of the Model Context Protocol over Streamable HTTP, of
// either era. It knows nothing of tests: the benchmark uses it, too.
package httpclient

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
)

// Client is a client of one server. Its methods may be called by several goroutines at
// once.
type Client struct {
	// URL is the server's, with its path. Token is sent with each request, unless it
	// is empty.
	URL, Token string
	// Version is that of the protocol. One without a handshake is
	// [mcpclient.Stateless].
	Version string
	// Header is sent with each request, besides the protocol's own fields.
	Header http.Header
	// Capabilities are the client's own; nil is none.
	Capabilities map[string]any
	// HTTP sends the requests; nil is http.DefaultClient.
	HTTP *http.Client

	last atomic.Int64
	mu   sync.Mutex
	// session is the HTTP session of a version with a handshake.
	session string
}

// StatusError reports a response that is no answer.
type StatusError struct {
	Status int
	Header http.Header
	Body   string
}

func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %.300s", e.Status, e.Body) }

// IsStateless reports whether the client's version of the protocol has no handshake.
func (c *Client) IsStateless() bool { return c.Version >= mcpclient.Stateless }

// Session returns the client's HTTP session, which is empty before [Client.Initialize].
func (c *Client) Session() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// SetSession has the client name an HTTP session.
func (c *Client) SetSession(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = id
}

// Initialize begins an HTTP session, where the version has them.
func (c *Client) Initialize(ctx context.Context) error {
	if c.IsStateless() {
		_, err := c.Call(ctx, "server/discover", nil, nil)
		return err
	}
	c.SetSession("")
	_, err := c.Call(ctx, "initialize", map[string]any{
		"protocolVersion": c.Version, "capabilities": c.capabilities(), "clientInfo": map[string]any{"name": "test", "version": "1"},
	}, nil)
	if err != nil {
		return err
	}
	return c.Notify(ctx, "notifications/initialized", nil)
}

func (c *Client) capabilities() map[string]any {
	if c.Capabilities == nil {
		return map[string]any{}
	}
	return c.Capabilities
}

// Reply replies to a request of the server with a result.
func (c *Client) Reply(ctx context.Context, id json.RawMessage, result any) error {
	message, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
	if err != nil {
		return err
	}
	response, err := c.Post(ctx, "", "", message)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusAccepted {
		return statusError(response)
	}
	return nil
}

// NextID returns an id for a request.
func (c *Client) NextID() int64 { return c.last.Add(1) }

// Message encodes a request, or a notification where id is nil.
func (c *Client) Message(id any, method string, params map[string]any) ([]byte, error) {
	if c.IsStateless() {
		params = maps.Clone(params)
		if params == nil {
			params = map[string]any{}
		}
		meta := map[string]any{
			"io.modelcontextprotocol/protocolVersion":    c.Version,
			"io.modelcontextprotocol/clientCapabilities": c.capabilities(),
			"io.modelcontextprotocol/clientInfo":         map[string]any{"name": "test", "version": "1"},
		}
		if given, ok := params["_meta"].(map[string]any); ok {
			maps.Copy(meta, given)
		}
		params["_meta"] = meta
	}
	message := map[string]any{"jsonrpc": "2.0", "method": method}
	if id != nil {
		message["id"] = id
	}
	if params != nil {
		message["params"] = params
	}
	return json.Marshal(message)
}

// Post sends a message and returns the response, whose body the caller closes.
func (c *Client) Post(ctx context.Context, method, name string, message []byte) (*http.Response, error) {
	r, err := c.Request(ctx, http.MethodPost, bytes.NewReader(message))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if c.IsStateless() {
		r.Header.Set("Mcp-Method", method)
		if name != "" {
			r.Header.Set("Mcp-Name", name)
		}
	}
	return c.Do(r)
}

// Request returns a request with the fields that each has.
func (c *Client) Request(ctx context.Context, method string, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.URL, body)
	if err != nil {
		return nil, err
	}
	r.Header = maps.Clone(c.Header)
	if r.Header == nil {
		r.Header = http.Header{}
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	if c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.Token)
	}
	if session := c.Session(); session != "" {
		r.Header.Set("Mcp-Session-Id", session)
	}
	if c.IsStateless() || c.Session() != "" {
		r.Header.Set("Mcp-Protocol-Version", c.Version)
	}
	return r, nil
}

// Do sends a request.
func (c *Client) Do(r *http.Request) (*http.Response, error) {
	if c.HTTP != nil {
		return c.HTTP.Do(r)
	}
	return http.DefaultClient.Do(r)
}

// Notify sends a notification.
func (c *Client) Notify(ctx context.Context, method string, params map[string]any) error {
	message, err := c.Message(nil, method, params)
	if err != nil {
		return err
	}
	response, err := c.Post(ctx, method, "", message)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusAccepted {
		return statusError(response)
	}
	return nil
}

// Call sends a request and returns its reply. What else comes in the response goes to
// notified, which may be nil. The error is a [*StatusError] for a response that is no
// reply, and a [*mcpclient.Error] for a reply that is one.
func (c *Client) Call(ctx context.Context, method string, params map[string]any, notified func(mcpclient.Message)) (mcpclient.Message, error) {
	return c.CallAs(ctx, c.NextID(), method, params, notified)
}

// CallAs is [Client.Call] with an id.
func (c *Client) CallAs(ctx context.Context, id any, method string, params map[string]any, notified func(mcpclient.Message)) (mcpclient.Message, error) {
	message, err := c.Message(id, method, params)
	if err != nil {
		return mcpclient.Message{}, err
	}
	name, _ := params["name"].(string)
	if uri, ok := params["uri"].(string); ok {
		name = uri
	}
	response, err := c.Post(ctx, method, name, message)
	if err != nil {
		return mcpclient.Message{}, err
	}
	defer response.Body.Close()
	if session := response.Header.Get("Mcp-Session-Id"); session != "" {
		c.SetSession(session)
	}
	reply, err := Reply(response, notified)
	if err == nil && reply.Error != nil {
		return reply, reply.Error
	}
	return reply, err
}

// Reply reads the reply in a response.
func Reply(response *http.Response, notified func(mcpclient.Message)) (mcpclient.Message, error) {
	if kind := response.Header.Get("Content-Type"); strings.HasPrefix(kind, "text/event-stream") {
		for m, err := range Events(response.Body) {
			if err != nil {
				return m, err
			}
			if len(m.ID) > 0 && m.Method == "" {
				return m, nil
			}
			if notified != nil {
				notified(m)
			}
		}
		return mcpclient.Message{}, errors.New("the stream ended without a reply")
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return mcpclient.Message{}, err
	}
	m := mcpclient.Message{Line: body}
	if json.Unmarshal(body, &m) != nil || len(m.Result) == 0 && m.Error == nil || response.StatusCode != http.StatusOK && string(m.ID) == "null" {
		return m, &StatusError{response.StatusCode, response.Header, string(body)}
	}
	return m, nil
}

func statusError(response *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	return &StatusError{response.StatusCode, response.Header, string(body)}
}

// Events yields the messages of a stream until it ends.
func Events(stream io.Reader) func(yield func(mcpclient.Message, error) bool) {
	return func(yield func(mcpclient.Message, error) bool) {
		reader := bufio.NewReader(stream)
		for {
			line, err := reader.ReadBytes('\n')
			if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
				m := mcpclient.Message{Line: bytes.TrimSpace(data)}
				if problem := json.Unmarshal(m.Line, &m); problem != nil {
					yield(m, fmt.Errorf("an event is no message: %w", problem))
					return
				}
				if !yield(m, nil) {
					return
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(mcpclient.Message{}, err)
				return
			}
		}
	}
}

// Run calls the tool.
func (c *Client) Run(ctx context.Context, arguments mcpclient.Arguments) (mcpclient.Answer, error) {
	return c.RunWith(ctx, arguments, nil, nil)
}

// RunWith calls the tool with fields of _meta, and passes on what is notified.
func (c *Client) RunWith(ctx context.Context, arguments mcpclient.Arguments, meta map[string]any, notified func(mcpclient.Message)) (mcpclient.Answer, error) {
	var answer mcpclient.Answer
	params := map[string]any{"name": "run", "arguments": arguments}
	if meta != nil {
		params["_meta"] = meta
	}
	reply, err := c.Call(ctx, "tools/call", params, notified)
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal(reply.Result, &answer)
}

package fusion

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/mcphttp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// prefix is before the name of a fact of this server in _meta.
const prefix = "nix-sandbox-mcp/"

// caller makes the calls of one request, as its sender.
type caller struct {
	Options
	request *http.Request
	mux     http.Handler
	session string // or ""
	begun   bool   // a call has begun the session, or may have
	who     string
	answers int64    // bytes of the answers to calls
	held    []func() // end the charges for the request and the answers
}

func (c *caller) release() {
	for _, release := range c.held {
		release()
	}
}

// errNoRoom reports that the answers to calls have too many bytes.
var errNoRoom = errors.New("the answer is too long")

// hold charges for the answer to a call: the part that is kept, its base64 and its JSON.
func (c *caller) hold(n int64) error {
	if c.answers += n; c.answers > maxAnswers {
		return fmt.Errorf("%w: outputs and files have more than %d bytes together, as JSON; ask for less in a request", errNoRoom, maxAnswers)
	}
	ctx, cancel := context.WithTimeout(c.request.Context(), bodyTime)
	defer cancel()
	release, err := c.Bytes.Take(ctx, c.who, 3*n)
	if err != nil {
		return fmt.Errorf("%w for the memory that is free: send the request again later, or ask for less in it", errNoRoom)
	}
	c.held = append(c.held, release)
	return nil
}

// newSession has further calls use a session of their own.
func (c *caller) newSession() { c.session = "fusion-" + rand.Text() }

// end ends the session, if a call has begun it, even if the client has gone.
func (c *caller) end(env registry.Environment) {
	if c.begun {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.request.Context()), bodyTime)
		defer cancel()
		c.request = c.request.WithContext(ctx)
		_, _ = c.call(env, "", map[string]any{"end_session": true})
	}
}

// result is the answer to a call.
type result struct {
	stdout, stderr string
	exit           int
	outcome        string
	seconds        float64
	images         []map[string]any // base64 by type
}

func (r result) command() *command {
	c := &command{Status: finished, ExecutionTime: r.seconds, Stdout: r.stdout, Stderr: r.stderr}
	if r.outcome == "timeout" {
		c.Status = timedOut
	} else {
		c.ReturnCode = &r.exit
	}
	return c
}

// call runs code. The error has the server's words if the code did not run.
func (c *caller) call(env registry.Environment, code string, given map[string]any) (r result, err error) {
	arguments := map[string]any{"env": env.Name, "code": code}
	if c.session != "" {
		arguments["session"] = c.session
	}
	meta := map[string]any{prefix + "verbatim": true}
	for name, value := range given {
		meta[prefix+name] = value
	}
	var answer struct {
		Content []struct{ Type, Text, Data, MIMEType string }
		Meta    struct {
			Content  []string `json:"nix-sandbox-mcp/content"`
			Outcome  string   `json:"nix-sandbox-mcp/outcome"`
			ExitCode *int     `json:"nix-sandbox-mcp/exit_code"`
			Duration float64  `json:"nix-sandbox-mcp/duration_ms"`
		} `json:"_meta"`
	}
	if err := c.ask("tools/call", "run", map[string]any{"name": "run", "arguments": arguments, "_meta": meta}, &answer); err != nil {
		c.begun = c.session != ""
		return r, err
	}
	// A refused call has no outcome.
	c.begun = c.begun || c.session != "" && answer.Meta.Outcome != ""
	r.outcome, r.seconds = answer.Meta.Outcome, answer.Meta.Duration/1000
	texts := answer.Meta.Content
	words := ""
	for _, item := range answer.Content {
		switch {
		case item.Type == "image":
			r.images = append(r.images, map[string]any{item.MIMEType: item.Data})
		case item.Type != "text":
		case len(texts) == 0:
			words += item.Text
		default:
			switch texts[0] {
			case "stdout":
				r.stdout = item.Text
			case "stderr":
				r.stderr = item.Text
			default:
				words += item.Text
			}
			texts = texts[1:]
		}
	}
	if answer.Meta.ExitCode == nil {
		return r, errors.New(words)
	}
	r.exit = *answer.Meta.ExitCode
	return r, nil
}

// ask sends a message to the handler of MCP and decodes the result.
func (c *caller) ask(method, name string, params map[string]any, into any) error {
	meta, _ := params["_meta"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		params["_meta"] = meta
	}
	meta["io.modelcontextprotocol/protocolVersion"] = mcp.ProtocolVersion20260728
	meta["io.modelcontextprotocol/clientCapabilities"] = map[string]any{}
	meta["io.modelcontextprotocol/clientInfo"] = map[string]any{"name": "SandboxFusion", "version": "1"}
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		return err
	}
	inner := c.request.Clone(c.request.Context())
	inner.URL.Path = mcphttp.Path
	inner.RequestURI, inner.Pattern = mcphttp.Path, ""
	inner.Body, inner.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	for field, value := range map[string]string{
		mcp.HeaderProtocolVersion: mcp.ProtocolVersion20260728, "Mcp-Method": method, "Mcp-Name": name,
		"Content-Type": "application/json", "Accept": "application/json", // and no stream of events
	} {
		inner.Header.Set(field, value)
	}
	w := &recorder{header: http.Header{}, status: http.StatusOK}
	c.mux.ServeHTTP(w, inner)
	reply := w.body.Bytes()
	if err := c.hold(int64(len(reply))); err != nil {
		return err
	}
	var message struct {
		Result json.RawMessage
		Error  *struct{ Message string }
	}
	if err := json.Unmarshal(reply, &message); err != nil {
		return fmt.Errorf("the server answered with status %d: %.200s", w.status, reply)
	}
	if message.Error != nil {
		return errors.New(message.Error.Message)
	}
	return json.Unmarshal(message.Result, into)
}

// recorder keeps an answer, which the handler of MCP bounds.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header            { return r.header }
func (r *recorder) WriteHeader(status int)         { r.status = status }
func (r *recorder) Write(data []byte) (int, error) { return r.body.Write(data) }
func (r *recorder) Flush()                         {}

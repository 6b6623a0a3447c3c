// Package mcpclient is a client of the Model Context Protocol. It starts a server
// as a program and speaks to it through the server's standard streams.
//
// It knows nothing of tests: the demonstration and the benchmark use it as it
// is, and package mcptest makes failures of a test of its errors.
package mcpclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Versions of the protocol that clients speak.
const (
	Oldest    = "2024-11-05"
	Newest    = "2025-11-25"
	Stateless = "2026-07-28"
)

// Message is what a server sent: a reply or a notification.
type Message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *Error          `json:"error"`

	Line []byte    `json:"-"` // the message as the server wrote it
	At   time.Time `json:"-"` // when its last byte was read
	Seq  int       `json:"-"` // how many messages the server has sent, with this one
}

// Error is the error of a reply.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return fmt.Sprintf("error %d: %s", e.Code, e.Message) }

// Content is a part of an answer.
type Content struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Data     []byte `json:"data"`
	MIMEType string `json:"mimeType"`
	URI      string `json:"uri"`
	Name     string `json:"name"`
	Size     int64  `json:"size"`
}

// Answer is the result of a call of run.
type Answer struct {
	Content []Content      `json:"content"`
	IsError bool           `json:"isError"`
	Meta    map[string]any `json:"_meta"`
	// Structured must stay empty: clients that see it show nothing else.
	Structured json.RawMessage `json:"structuredContent"`
}

// Text returns the answer's texts as one, as a client shows them that joins
// them.
func (a Answer) Text() string {
	return strings.Join(a.Texts(), "")
}

// Texts returns the answer's texts: what the code wrote to stdout and stderr,
// and what the server has to say. The fact "content" says which is which.
func (a Answer) Texts() []string {
	var texts []string
	for _, content := range a.Content {
		if content.Type == "text" {
			texts = append(texts, content.Text)
		}
	}
	return texts
}

// Fact returns one of the facts in the answer's _meta.
func (a Answer) Fact(name string) any { return a.Meta["nix-sandbox-mcp/"+name] }

// Arguments are those of run.
type Arguments struct {
	Code    string `json:"code"`
	Env     string `json:"env"`
	Session string `json:"session,omitempty"`
	From    string `json:"from,omitempty"`
	// Timeout is in seconds; 0 leaves it out.
	Timeout float64 `json:"timeout,omitempty"`
}

// Client is a connection to a server that it started. Its methods may be called
// by several goroutines at once.
type Client struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	fault  func(string)
	over   chan struct{} // closed when the server's output has ended
	exited chan struct{} // closed when the server has ended, too

	writing sync.Mutex

	// Capabilities are the client's own, and OnRequest is called with each request of the server, in
	// a goroutine of its own. Both are set before Initialize, or left nil.
	Capabilities map[string]any
	OnRequest    func(Message)

	mu        sync.Mutex
	last      int
	count     int
	version   string
	replies   map[string]*reply
	anonymous []Message
	notes     []Message
}

// reply is the reply to one request, once it is there.
type reply struct {
	arrived chan struct{} // closed when message is set
	message Message
}

// Start starts cmd as a server. A breach of the protocol that concerns no
// request, such as a line that is no JSON, is given to fault.
func Start(cmd *exec.Cmd, fault func(string)) (*Client, error) {
	c := &Client{cmd: cmd, fault: fault, over: make(chan struct{}), exited: make(chan struct{}), replies: map[string]*reply{}}
	var err error
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	go func() {
		c.read(stdout)
		close(c.over)
		_ = cmd.Wait() // its status is asked of cmd
		close(c.exited)
	}()
	return c, nil
}

// read takes in messages until the server's output ends. The server is the
// program under test, so its lines have no limit.
func (c *Client) read(out io.Reader) {
	lines := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			c.take(Message{Line: line, At: time.Now()})
		}
		if err != nil {
			return
		}
	}
}

func (c *Client) take(message Message) {
	if err := json.Unmarshal(message.Line, &message); err != nil {
		c.fault(fmt.Sprintf("the server wrote %.200q, which is not JSON", message.Line))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	message.Seq = c.count
	switch {
	case message.Method != "" && len(message.ID) > 0 && c.OnRequest != nil:
		go c.OnRequest(message)
	case message.Method != "":
		c.notes = append(c.notes, message)
	case len(message.ID) == 0 || string(message.ID) == "null":
		c.anonymous = append(c.anonymous, message)
	default:
		r := c.reply(string(message.ID))
		select {
		case <-r.arrived:
			c.fault(fmt.Sprintf("the server answered %s twice", message.ID))
		default:
			r.message = message
			close(r.arrived)
		}
	}
}

// reply returns the place of a reply. The caller holds the lock.
func (c *Client) reply(id string) *reply {
	r := c.replies[id]
	if r == nil {
		r = &reply{arrived: make(chan struct{})}
		c.replies[id] = r
	}
	return r
}

// Write writes bytes as they are.
func (c *Client) Write(data []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.stdin.Write(data)
}

// Request returns the line of a new request, and its id.
func (c *Client) Request(method string, params any) (id string, line []byte, err error) {
	c.mu.Lock()
	c.last++
	id = fmt.Sprint(c.last)
	stateless := c.version == Stateless
	c.mu.Unlock()
	line, err = encode(map[string]any{"id": json.RawMessage(id)}, method, params, stateless, c.capabilities())
	return id, line, err
}

// Reply replies to a request of the server with a result.
func (c *Client) Reply(id json.RawMessage, result any) error {
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
	if err == nil {
		_, err = c.Write(append(line, '\n'))
	}
	return err
}

func (c *Client) capabilities() map[string]any {
	if c.Capabilities == nil {
		return map[string]any{}
	}
	return c.Capabilities
}

// Notify sends a notification.
func (c *Client) Notify(method string, params any) error {
	line, err := encode(map[string]any{}, method, params, false, nil)
	if err == nil {
		_, err = c.Write(line)
	}
	return err
}

func encode(message map[string]any, method string, params any, stateless bool, capabilities map[string]any) ([]byte, error) {
	message["jsonrpc"], message["method"] = "2.0", method
	if params != nil {
		message["params"] = params
	}
	if stateless {
		fields := map[string]any{}
		text, err := json.Marshal(params)
		if err == nil {
			err = json.Unmarshal(text, &fields)
		}
		if err != nil {
			return nil, fmt.Errorf("params of %s: %w", method, err)
		}
		if fields == nil {
			fields = map[string]any{}
		}
		meta, _ := fields["_meta"].(map[string]any)
		if meta == nil {
			meta = map[string]any{}
		}
		meta["io.modelcontextprotocol/protocolVersion"] = Stateless
		meta["io.modelcontextprotocol/clientCapabilities"] = capabilities
		fields["_meta"] = meta
		message["params"] = fields
	}
	text, err := json.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return append(text, '\n'), nil
}

// Await waits for the reply to a request. The error says why none came.
func (c *Client) Await(ctx context.Context, id string) (Message, error) {
	c.mu.Lock()
	r := c.reply(id)
	c.mu.Unlock()
	select {
	case <-r.arrived:
	case <-c.over:
		select {
		case <-r.arrived: // both had happened
		default:
			return Message{}, fmt.Errorf("waiting for the reply to %s: %w", id, ErrEnded)
		}
	case <-ctx.Done():
		return Message{}, fmt.Errorf("waiting for the reply to %s: %w", id, ctx.Err())
	}
	return r.message, nil
}

// ErrEnded is the error of [Client.Await] where the server has ended.
var ErrEnded = errors.New("the server's output ended")

// Answered reports whether a request has its reply.
func (c *Client) Answered(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.reply(id).arrived:
		return true
	default:
		return false
	}
}

// Anonymous returns the replies without an id so far.
func (c *Client) Anonymous() []Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Message(nil), c.anonymous...)
}

// Notes returns the notifications so far.
func (c *Client) Notes() []Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Message(nil), c.notes...)
}

// Call sends a request and waits for the reply. The reply's own error is an
// error of the call.
func (c *Client) Call(ctx context.Context, method string, params any) (Message, error) {
	id, line, err := c.Request(method, params)
	if err != nil {
		return Message{}, err
	}
	// A server that does not read is told from one that has ended by the reply.
	_, _ = c.Write(line)
	message, err := c.Await(ctx, id)
	if err == nil && message.Error != nil {
		err = fmt.Errorf("%s: %w", method, message.Error)
	}
	return message, err
}

// Initialize opens the connection as clients of a version do; the stateless
// version asks what the server is instead.
func (c *Client) Initialize(ctx context.Context, version, name string) (Message, error) {
	c.mu.Lock()
	c.version = version
	c.mu.Unlock()
	if version == Stateless {
		return c.Call(ctx, "server/discover", nil)
	}
	message, err := c.Call(ctx, "initialize", map[string]any{
		"protocolVersion": version,
		"capabilities":    c.capabilities(),
		"clientInfo":      map[string]any{"name": name, "version": "1"},
	})
	if err != nil {
		return message, err
	}
	return message, c.Notify("notifications/initialized", nil)
}

// RunParams returns the params of a call of run.
func RunParams(arguments any) map[string]any {
	return map[string]any{"name": "run", "arguments": arguments}
}

// Answer returns the answer that the reply to a call of run carries.
func (m Message) Answer() (Answer, error) {
	var answer Answer
	if m.Error != nil {
		return answer, fmt.Errorf("run: %w", m.Error)
	}
	if err := json.Unmarshal(m.Result, &answer); err != nil {
		return answer, fmt.Errorf("run answered %.200s: %w", m.Result, err)
	}
	return answer, nil
}

// PID returns the server's process.
func (c *Client) PID() int { return c.cmd.Process.Pid }

// CloseInput ends the server's input, by which clients end a server.
func (c *Client) CloseInput() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.stdin.Close()
}

// Exited returns a channel that is closed when the server and its output have
// ended.
func (c *Client) Exited() <-chan struct{} { return c.exited }

// Close ends the server's input and waits for its end. A server that goes on is
// killed when ctx is done. An exit status other than 0 is an error.
func (c *Client) Close(ctx context.Context) error {
	_ = c.CloseInput() // it may have ended
	select {
	case <-c.exited:
	case <-ctx.Done():
		_ = c.cmd.Process.Kill()
		<-c.exited
		return fmt.Errorf("the server goes on after the end of its input: %w", ctx.Err())
	}
	if !c.cmd.ProcessState.Success() {
		return fmt.Errorf("the server ended with %v", c.cmd.ProcessState)
	}
	return nil
}

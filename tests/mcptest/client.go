// Package mcptest is an MCP client for tests: it starts a server as a
// program, speaks to it through real pipes, and looks at what it leaves
// behind.
//
// It promises that a test never hangs: whatever it waits for fails the test
// after [patience.Long].
package mcptest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
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
	// Seq is the message's place in what the server sent.
	Seq int `json:"-"`
}

// Error is the error of a reply.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

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

// Text is the answer's first text.
func (a Answer) Text() string {
	if len(a.Content) == 0 {
		return ""
	}
	return a.Content[0].Text
}

// Fact is one of the facts in the answer's _meta.
func (a Answer) Fact(name string) any { return a.Meta["nix-sandbox-mcp/"+name] }

// Client is a client and the server that it started.
type Client struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   *Log

	writing sync.Mutex

	mu        sync.Mutex
	arrived   *sync.Cond
	last      int
	count     int
	version   string
	replies   map[string]Message
	anonymous []Message // replies without an id
	notes     []Message
	over      bool // the server's output has ended
	late      bool // patience has ended
	exited    chan struct{}
}

// Log collects a server's standard error.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *Log) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(data)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Start starts cmd as a server. It is killed at the end of the test if it
// still runs.
func Start(t testing.TB, cmd *exec.Cmd) *Client {
	t.Helper()
	c := &Client{t: t, cmd: cmd, log: &Log{}, replies: map[string]Message{}, exited: make(chan struct{})}
	c.arrived = sync.NewCond(&c.mu)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdin = stdin
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if cmd.Stderr == nil {
		cmd.Stderr = c.log
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start the server: %v", err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		c.read(stdout)
	}()
	go func() {
		defer close(c.exited)
		<-read
		cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-c.exited
		if t.Failed() {
			t.Logf("the server's log:\n%s", c.log)
		}
	})
	return c
}

// read takes in messages until the server's output ends.
func (c *Client) read(out io.Reader) {
	reader := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := reader.ReadBytes('\n')
		c.mu.Lock()
		if len(line) > 0 {
			var message Message
			if err := json.Unmarshal(line, &message); err != nil {
				c.t.Errorf("the server wrote %.200q, which is not JSON", line)
			}
			c.count++
			message.Seq = c.count
			switch {
			case message.Method != "":
				c.notes = append(c.notes, message)
			case len(message.ID) == 0 || string(message.ID) == "null":
				c.anonymous = append(c.anonymous, message)
			default:
				if _, twice := c.replies[string(message.ID)]; twice {
					c.t.Errorf("the server answered %s twice", message.ID)
				}
				c.replies[string(message.ID)] = message
			}
		}
		c.over = err != nil
		c.arrived.Broadcast()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Log is what the server wrote to its standard error.
func (c *Client) Log() string { return c.log.String() }

// PID is the server's process.
func (c *Client) PID() int { return c.cmd.Process.Pid }

// Descriptors is how many descriptors the server has open.
func (c *Client) Descriptors() int {
	c.t.Helper()
	n, err := procfs.Descriptors(c.PID())
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// PeakMemory is the most memory that the server has had resident, in bytes.
func (c *Client) PeakMemory() int64 {
	c.t.Helper()
	size, err := procfs.PeakMemory(c.PID())
	if err != nil {
		c.t.Fatal(err)
	}
	return size
}

// Raw writes bytes as they are. A server that does not read fails nothing:
// what it should have answered will be missed.
func (c *Client) Raw(data []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, _ = c.stdin.Write(data)
}

// Send sends a request and returns its id.
func (c *Client) Send(method string, params any) string {
	c.mu.Lock()
	c.last++
	id := fmt.Sprint(c.last)
	version := c.version
	c.mu.Unlock()
	c.message(map[string]any{"id": json.RawMessage(id)}, method, params, version)
	return id
}

// Notify sends a notification.
func (c *Client) Notify(method string, params any) {
	c.message(map[string]any{}, method, params, "")
}

func (c *Client) message(message map[string]any, method string, params any, version string) {
	message["jsonrpc"], message["method"] = "2.0", method
	fields := map[string]any{}
	if params != nil {
		text, err := json.Marshal(params)
		if err == nil {
			err = json.Unmarshal(text, &fields)
		}
		if err != nil {
			c.t.Errorf("params of %s: %v", method, err)
			return
		}
	}
	if version == Stateless {
		meta, _ := fields["_meta"].(map[string]any)
		if meta == nil {
			meta = map[string]any{}
		}
		meta["io.modelcontextprotocol/protocolVersion"] = Stateless
		meta["io.modelcontextprotocol/clientCapabilities"] = map[string]any{}
		fields["_meta"] = meta
	}
	if len(fields) > 0 {
		message["params"] = fields
	}
	text, err := json.Marshal(message)
	if err != nil {
		c.t.Errorf("%s: %v", method, err)
		return
	}
	c.Raw(append(text, '\n'))
}

// await waits until ready, which is called with the client locked, is true.
func (c *Client) await(what string, ready func() bool) {
	c.t.Helper()
	timer := time.AfterFunc(patience.Long, func() {
		c.mu.Lock()
		c.late = true
		c.arrived.Broadcast()
		c.mu.Unlock()
	})
	defer timer.Stop()
	for !ready() {
		if c.over || c.late {
			why := "the server's output ended"
			if c.late {
				why = fmt.Sprintf("nothing within %v", patience.Long)
			}
			c.mu.Unlock()
			c.t.Fatalf("waiting for %s: %s; its log:\n%s", what, why, c.log)
		}
		c.arrived.Wait()
	}
}

// Await returns the reply to a request.
func (c *Client) Await(id string) Message {
	c.t.Helper()
	c.mu.Lock()
	c.await("the reply to "+id, func() bool {
		_, ok := c.replies[id]
		return ok
	})
	defer c.mu.Unlock()
	return c.replies[id]
}

// Answered says whether a request has its reply.
func (c *Client) Answered(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.replies[id]
	return ok
}

// Anonymous returns the n-th reply that has no id, from 0.
func (c *Client) Anonymous(n int) Message {
	c.t.Helper()
	c.mu.Lock()
	c.await("a reply without an id", func() bool { return len(c.anonymous) > n })
	defer c.mu.Unlock()
	return c.anonymous[n]
}

// Notes returns the notifications so far.
func (c *Client) Notes() []Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Message(nil), c.notes...)
}

// Request sends a request and returns the reply, which must not be an error.
func (c *Client) Request(method string, params any) Message {
	c.t.Helper()
	reply := c.Await(c.Send(method, params))
	if reply.Error != nil {
		c.t.Fatalf("%s: error %d: %s", method, reply.Error.Code, reply.Error.Message)
	}
	return reply
}

// Initialize opens the connection as clients of a version do; the stateless
// version asks what the server is instead.
func (c *Client) Initialize(version string) Message {
	c.t.Helper()
	c.mu.Lock()
	c.version = version
	c.mu.Unlock()
	if version == Stateless {
		return c.Request("server/discover", nil)
	}
	reply := c.Request("initialize", map[string]any{
		"protocolVersion": version,
		"capabilities":    map[string]any{},
		"clientInfo":      map[string]any{"name": "mcptest", "version": "1"},
	})
	c.Notify("notifications/initialized", nil)
	return reply
}

// Arguments are those of run.
type Arguments struct {
	Code    string `json:"code"`
	Env     string `json:"env"`
	Session string `json:"session,omitempty"`
}

// SendRun sends a call of run and returns its id.
func (c *Client) SendRun(args any) string {
	return c.Send("tools/call", map[string]any{"name": "run", "arguments": args})
}

// AwaitRun returns the answer to a call of run.
func (c *Client) AwaitRun(id string) Answer {
	c.t.Helper()
	reply := c.Await(id)
	if reply.Error != nil {
		c.t.Fatalf("run: error %d: %s", reply.Error.Code, reply.Error.Message)
	}
	var answer Answer
	if err := json.Unmarshal(reply.Result, &answer); err != nil {
		c.t.Fatalf("run answered %.200s: %v", reply.Result, err)
	}
	return answer
}

// Run calls run and returns the answer.
func (c *Client) Run(args any) Answer {
	c.t.Helper()
	return c.AwaitRun(c.SendRun(args))
}

// CloseInput ends the server's input.
func (c *Client) CloseInput() {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.stdin.Close()
}

// Signal sends the server a signal.
func (c *Client) Signal(signal syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.t.Fatal(err)
	}
}

// Wait waits for the server's end, at most for within (which [patience.For]
// stretches), and returns its exit status; -1 where a signal ended it.
func (c *Client) Wait(within time.Duration) int {
	c.t.Helper()
	within = patience.For(within)
	select {
	case <-c.exited:
	case <-time.After(within):
		c.t.Fatalf("the server runs on after %v; its log:\n%s", within, c.log)
	}
	return c.cmd.ProcessState.ExitCode()
}

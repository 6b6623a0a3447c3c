// Package mcptest is [mcpclient] for tests: what that returns as errors fails the
// test, and a test that ends ends the server.
//
// It promises that a test never hangs: whatever it waits for fails the test
// after [patience.Answer].
package mcptest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// What tests say of package mcpclient.
const (
	Oldest    = mcpclient.Oldest
	Newest    = mcpclient.Newest
	Stateless = mcpclient.Stateless
)

type (
	Message   = mcpclient.Message
	Answer    = mcpclient.Answer
	Content   = mcpclient.Content
	Arguments = mcpclient.Arguments
)

// Client is a client and the server that it started.
type Client struct {
	*mcpclient.Client
	t   testing.TB
	cmd *exec.Cmd
	log *Log
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
	c := &Client{t: t, cmd: cmd, log: &Log{}}
	if cmd.Stderr == nil {
		cmd.Stderr = c.log
	}
	var err error
	if c.Client, err = mcpclient.Start(cmd, func(fault string) { t.Error(fault) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-c.Exited()
		if t.Failed() {
			t.Logf("the server's log:\n%s", c.log)
		}
	})
	return c
}

// Log returns what the server wrote to its standard error.
func (c *Client) Log() string { return c.log.String() }

// Descriptors returns how many descriptors the server has open.
func (c *Client) Descriptors() int {
	c.t.Helper()
	n := must.Get(procfs.Descriptors(c.PID()))(c.t)
	return n
}

// PeakMemory returns the most memory that the server has had resident, in bytes.
func (c *Client) PeakMemory() int64 {
	c.t.Helper()
	size := must.Get(procfs.PeakMemory(c.PID()))(c.t)
	return size
}

// Raw writes bytes as they are. A server that does not read fails nothing:
// what it should have answered will be missed.
func (c *Client) Raw(data []byte) { _, _ = c.Write(data) }

// Send sends a request and returns its id.
func (c *Client) Send(method string, params any) string {
	id, line, err := c.Client.Request(method, params)
	if err != nil {
		c.t.Error(err)
	}
	c.Raw(line)
	return id
}

// Notify sends a notification.
func (c *Client) Notify(method string, params any) { _ = c.Client.Notify(method, params) }

// Await returns the reply to a request.
func (c *Client) Await(id string) Message {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience.Answer())
	defer cancel()
	message, err := c.Client.Await(ctx, id)
	if err != nil {
		c.t.Fatalf("%v; its log:\n%s", err, c.log)
	}
	return message
}

// Anonymous returns the n-th reply that has no id, from 0.
func (c *Client) Anonymous(n int) Message {
	c.t.Helper()
	patience.Until(c.t, "a reply without an id", func() bool { return len(c.Client.Anonymous()) > n })
	return c.Client.Anonymous()[n]
}

// Request sends a request and returns the reply, which must not be an error.
func (c *Client) Request(method string, params any) Message {
	c.t.Helper()
	reply := c.Await(c.Send(method, params))
	if reply.Error != nil {
		c.t.Fatalf("%s: %v", method, reply.Error)
	}
	return reply
}

// Initialize is [mcpclient.Client.Initialize].
func (c *Client) Initialize(version string) Message {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience.Answer())
	defer cancel()
	reply, err := c.Client.Initialize(ctx, version, "mcptest")
	if err != nil {
		c.t.Fatalf("%v; its log:\n%s", err, c.log)
	}
	return reply
}

// SendRun sends a call of run and returns its id.
func (c *Client) SendRun(arguments any) string {
	return c.Send("tools/call", mcpclient.RunParams(arguments))
}

// AwaitRun returns the answer to a call of run.
func (c *Client) AwaitRun(id string) Answer {
	c.t.Helper()
	answer := must.Get(c.Await(id).Answer())(c.t)
	return answer
}

// Run calls run and returns the answer.
func (c *Client) Run(arguments any) Answer {
	c.t.Helper()
	return c.AwaitRun(c.SendRun(arguments))
}

// CloseInput ends the server's input.
func (c *Client) CloseInput() { _ = c.Client.CloseInput() }

// Signal sends the server a signal.
func (c *Client) Signal(signal syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.t.Fatal(err)
	}
}

// Wait waits for the server's end and returns its exit status; -1 where a signal ended
// it. The test fails where the server runs on after within, or after a minute, whichever
// is longer: no machine is so busy.
func (c *Client) Wait(within time.Duration) int {
	c.t.Helper()
	within = max(patience.For(within), patience.Long)
	select {
	case <-c.Exited():
	case <-time.After(within):
		c.t.Fatalf("the server runs on after %v; its log:\n%s", within, c.log)
	}
	return c.cmd.ProcessState.ExitCode()
}

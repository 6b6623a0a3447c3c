package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// patience is how long one answer may take before the demonstration ends.
const patience = 60 * time.Second

// client is the smallest MCP client that can call a tool: one request at a
// time over the server's standard streams.
type client struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	replies chan []byte
	last    int
}

// connect starts the server with additional environment variables.
func connect(server string, env ...string) (*client, error) {
	cmd := exec.Command(server, "--stdio")
	cmd.Env = append(os.Environ(), env...)
	// The log matters where something fails, and then it is worth seeing.
	log, err := os.CreateTemp("", "nix-sandbox-mcp-demo-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	c := &client{cmd: cmd, in: in, replies: make(chan []byte)}
	go func() {
		defer close(c.replies)
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			c.replies <- line
		}
	}()
	return c, nil
}

// request sends one and waits for its reply; notifications are passed over.
func (c *client) request(method string, params, result any) error {
	c.last++
	message := map[string]any{"jsonrpc": "2.0", "id": c.last, "method": method, "params": params}
	if err := json.NewEncoder(c.in).Encode(message); err != nil {
		return fmt.Errorf("send %s: %w", method, err)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return fmt.Errorf("%s: no reply within %v", method, patience)
		case line, ok := <-c.replies:
			if !ok {
				return fmt.Errorf("%s: the server ended; its log is %s", method, c.cmd.Stderr.(*os.File).Name())
			}
			var reply struct {
				ID     int
				Result json.RawMessage
				Error  *struct{ Message string }
			}
			if err := json.Unmarshal(line, &reply); err != nil {
				return fmt.Errorf("%s: reply %.80q: %w", method, line, err)
			}
			switch {
			case reply.ID != c.last:
				continue
			case reply.Error != nil:
				return errors.New(reply.Error.Message)
			}
			return json.Unmarshal(reply.Result, result)
		}
	}
}

// hello is what a server says of itself.
type hello struct {
	ServerInfo struct{ Name, Version string }
}

func (c *client) initialize() (hello, error) {
	var h hello
	err := c.request("initialize", map[string]any{
		"protocolVersion": "2025-11-25",
		"capabilities":    map[string]any{},
		"clientInfo":      map[string]any{"name": "demo", "version": "1"},
	}, &h)
	if err != nil {
		return h, err
	}
	_, err = fmt.Fprintln(c.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return h, err
}

// answer is what a call of run came to.
type answer struct {
	Content []struct{ Type, Text string }
	IsError bool
}

func (a answer) text() string {
	for _, part := range a.Content {
		if part.Type == "text" {
			return part.Text
		}
	}
	return ""
}

func (c *client) run(args map[string]string) (answer, error) {
	var a answer
	err := c.request("tools/call", map[string]any{"name": "run", "arguments": args}, &a)
	return a, err
}

// close ends the server as clients do, by the end of its input.
func (c *client) close() error {
	c.in.Close()
	for range c.replies { // until its output ends too
	}
	err := c.cmd.Wait()
	os.Remove(c.cmd.Stderr.(*os.File).Name())
	return err
}

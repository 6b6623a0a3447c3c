package desk

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Client is a question to a server, from the client's side.
type Client struct {
	conn   *net.UnixConn
	reader *frame.Reader
	writer *frame.Writer
}

// Dial asks a server. The caller closes the client, and reads the answers before that.
func (s Server) Dial(ctx context.Context, verb string, args any) (*Client, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.Path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("the server with the process %d cannot be asked: %w", s.PID, err)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	c := &Client{conn, frame.NewReader(conn), frame.NewWriter(conn)}
	text, err := json.Marshal(args)
	if err == nil {
		err = c.writer.Write(question{verb, text})
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("ask the server with the process %d: %w", s.PID, err)
	}
	return c, nil
}

// Read waits for the server's next frame, which may be a refusal. The error is io.EOF if the
// server has said everything.
func (c *Client) Read(result any) error {
	var a struct {
		Result      json.RawMessage `json:"result"`
		Error, Hint string
	}
	if err := c.reader.Read(&a); err != nil {
		return err
	}
	switch {
	case a.Error != "" && a.Hint != "":
		return &config.Error{Problem: a.Error, Hint: a.Hint}
	case a.Error != "":
		return fmt.Errorf("%s", a.Error)
	}
	return json.Unmarshal(a.Result, result)
}

// Write sends a frame. It may be called at the same time as Read and itself.
func (c *Client) Write(v any) error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	return c.writer.Write(v)
}

// CloseWrite says that the client sends no more. It can still read.
func (c *Client) CloseWrite() error { return c.conn.CloseWrite() }

// Close ends the question.
func (c *Client) Close() error { return c.conn.Close() }

// Ask asks a server something with one answer, which must come before ctx ends.
func (s Server) Ask(ctx context.Context, verb string, args, result any) error {
	c, err := s.Dial(ctx, verb, args)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Now()) })()
	if err := c.Read(result); err != nil {
		return fmt.Errorf("the server with the process %d: %w", s.PID, err)
	}
	return nil
}

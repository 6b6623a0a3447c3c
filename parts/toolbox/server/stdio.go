package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox/framed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

const (
	// writeTimeout bounds how long a server may not read what it is sent.
	writeTimeout = 10 * time.Second
	// maxLog is how much of a server's standard error an error quotes, in bytes.
	maxLog = 400
	// endTimeout bounds the wait for the end of a server's sandbox, and lookTimeout that for the limit that it crossed.
	endTimeout  = 10 * time.Second
	lookTimeout = 2 * time.Second
)

// stdio speaks with a server in a sandbox of its own, over the standard streams of a program there. mcp-go's own
// transport would start a process outside of a sandbox, and reads lines of any length.
type stdio struct {
	starter *framed.Starter
	box     sandbox.Visitable
	program sandbox.Stream
	out     *io.PipeReader
	maxLine int
	log     *slog.Logger
	tail    tail
	closing sync.Once
	writing sync.Mutex

	mu      sync.Mutex
	waiting map[string]chan *transport.JSONRPCResponse
	reason  error // of the end
	done    chan struct{}
}

var _ transport.Interface = (*stdio)(nil)

// tail keeps the end of a log.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = sandbox.LastBytes(append(t.text, bounded.Head(string(p), 4*maxLog)...), maxLog)
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return hostile.Message(strings.TrimSpace(string(t.text)))
}

// startJail starts the server of an artifact.
func startJail(ctx context.Context, spec Spec, log *slog.Logger) (_ *stdio, err error) {
	out, in := io.Pipe()
	s := &stdio{out: out, maxLine: spec.ResultBytes + 64<<10, log: log, waiting: map[string]chan *transport.JSONRPCResponse{}, done: make(chan struct{})}
	s.starter = framed.New(slog.New(framed.Lines(func(line string) { _, _ = s.tail.Write([]byte(line + "\n")) })), framed.Options{StartTimeout: StartTimeout})
	defer func() {
		if err != nil {
			s.starter.Close(endTimeout)
		}
	}()
	box, err := s.starter.Start(ctx, sandbox.Spec{Name: "tools", Exec: spec.Exec, Secrets: spec.Secrets, OutputBytes: maxLog})
	if err != nil {
		return nil, err
	}
	s.box = box.(sandbox.Visitable)
	if s.program, err = s.box.Open(ctx, frame.Request{Program: &frame.Program{Interpreter: true}, Contents: []byte(spec.Start)}, nil); err != nil {
		return nil, err
	}
	go s.show(in)
	go s.read()
	return s, nil
}

// show passes on what the server writes, and at last why it ended.
func (s *stdio) show(in *io.PipeWriter) {
	defer guard.Recover(func(panicked error) { _ = in.CloseWithError(panicked) })
	buffer := make([]byte, frame.StreamPart)
	for {
		n, stream, end := s.program.Next(buffer)
		if end != nil {
			break
		}
		to := io.Writer(in)
		if stream == frame.Stderr {
			to = &s.tail
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			s.program.Close()
		}
	}
	err := fmt.Errorf("it ended with exit status %d", s.program.ExitCode())
	// A call without code finds the limit that was crossed.
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	if ran, _ := s.box.Run(ctx, sandbox.Request{Timeout: lookTimeout}); ran.Limit != nil {
		err = fmt.Errorf("it was stopped: it %v", ran.Limit)
	}
	_ = in.CloseWithError(err)
}

// read takes lines until the stream ends or breaks a rule.
func (s *stdio) read() {
	defer guard.Recover(s.end)
	lines := bufio.NewScanner(s.out)
	lines.Buffer(make([]byte, 0, 4<<10), s.maxLine)
	for lines.Scan() {
		s.message(lines.Bytes())
	}
	err := lines.Err()
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		err = fmt.Errorf("it sent a line of more than %d MiB", s.maxLine>>20)
	case err == nil:
		err = io.ErrUnexpectedEOF
	}
	s.end(err)
}

// message takes one line. A line that is no message of MCP is a server's mistake, and is dropped:
// many print a greeting.
func (s *stdio) message(line []byte) {
	var m struct {
		ID     json.RawMessage          `json:"id"`
		Method string                   `json:"method"`
		Result json.RawMessage          `json:"result"`
		Error  *mcp.JSONRPCErrorDetails `json:"error"`
	}
	if json.Unmarshal(line, &m) != nil {
		s.log.Debug("a tool server wrote a line that is no message", "bytes", len(line))
		return
	}
	switch {
	case m.Method != "" && len(m.ID) > 0:
		s.refuse(m.Method, m.ID)
	case m.Method == "":
		s.mu.Lock()
		answer := s.waiting[string(m.ID)]
		delete(s.waiting, string(m.ID))
		s.mu.Unlock()
		if answer != nil {
			answer <- &transport.JSONRPCResponse{Result: m.Result, Error: m.Error}
		}
	}
}

// refuse answers a request of the server. It was told that this client has nothing that a server
// could ask for: no sampling, no elicitation, no roots.
func (s *stdio) refuse(method string, id json.RawMessage) {
	if len(id) > 256 {
		return
	}
	answer := map[string]any{"jsonrpc": "2.0", "id": id}
	if method == string(mcp.MethodPing) {
		answer["result"] = struct{}{}
	} else {
		answer["error"] = map[string]any{"code": mcp.METHOD_NOT_FOUND, "message": "this client answers nothing but ping"}
	}
	_ = s.write(answer)
}

func (s *stdio) write(message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	stuck := time.AfterFunc(writeTimeout, s.box.Kill)
	defer stuck.Stop()
	if _, err := s.program.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("it takes no input: %w", err)
	}
	return nil
}

// end records why the server ended, and fails what waits.
func (s *stdio) end(err error) {
	s.mu.Lock()
	if s.reason == nil {
		if text := s.tail.String(); text != "" {
			err = fmt.Errorf("%w; its log ends: %s", err, text)
		}
		s.reason = err
		close(s.done)
	}
	s.mu.Unlock()
	s.out.Close()
	s.box.Kill()
}

// Start implements [transport.Interface]: the program has started already.
func (s *stdio) Start(context.Context) error { return nil }

// SendRequest implements [transport.Interface]. If ctx ends first, the server is told.
func (s *stdio) SendRequest(ctx context.Context, request transport.JSONRPCRequest) (*transport.JSONRPCResponse, error) {
	id, err := json.Marshal(request.ID)
	if err != nil {
		return nil, err
	}
	answer := make(chan *transport.JSONRPCResponse, 1)
	s.mu.Lock()
	s.waiting[string(id)] = answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.waiting, string(id))
		s.mu.Unlock()
	}()
	if err := s.write(request); err != nil {
		return nil, err
	}
	select {
	case response := <-answer:
		return response, nil
	case <-s.done:
		return nil, s.reason
	case <-ctx.Done():
		_ = s.write(map[string]any{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": map[string]any{"requestId": json.RawMessage(id), "reason": "the caller gave up"}})
		return nil, ctx.Err()
	}
}

// SendNotification implements [transport.Interface].
func (s *stdio) SendNotification(_ context.Context, notification mcp.JSONRPCNotification) error {
	return s.write(notification)
}

// SetNotificationHandler implements [transport.Interface]. Notifications of a server change
// nothing here: its tools are in the lock file.
func (s *stdio) SetNotificationHandler(func(mcp.JSONRPCNotification)) {}

// Close implements [transport.Interface]. It waits until all processes of the server are gone.
func (s *stdio) Close() error {
	s.closing.Do(func() {
		s.end(errors.New("the server was ended"))
		s.starter.Close(endTimeout)
	})
	return nil
}

// GetSessionId implements [transport.Interface].
func (s *stdio) GetSessionId() string { return "" }

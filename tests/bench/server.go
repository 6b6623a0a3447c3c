package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A server is a running nix-sandbox-mcp and the client's side of its standard
// streams.
type server struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	log   *os.File
	done  chan struct{} // closed when its output has ended
	write sync.Mutex

	mu      sync.Mutex
	last    int
	pending map[int]chan answer
}

// An answer is a line of the server, and when the whole of it was there.
type answer struct {
	line []byte
	at   time.Time
}

// launch is how servers are started.
type launch struct {
	program  string
	metadata string // file
	env      []string
	reaped   bool // under [reap], for the processor time of all it starts
}

// start starts a server and waits until it answered initialize; took is the
// time that this needed.
func (l launch) start(ctx context.Context) (s *server, took time.Duration, err error) {
	argv := []string{l.program, "--stdio"}
	if l.reaped {
		self, err := os.Executable()
		if err != nil {
			return nil, 0, err
		}
		argv = append([]string{self, reapVerb}, argv...)
	}
	s = &server{pending: map[int]chan answer{}, done: make(chan struct{})}
	s.cmd = exec.Command(argv[0], argv[1:]...)
	s.cmd.Env = append([]string{"NIX_SANDBOX_METADATA=" + l.metadata, "NIX_SANDBOX_DIR=/var/empty"}, l.env...)
	if s.log, err = os.CreateTemp("", "nix-sandbox-bench-*.log"); err != nil {
		return nil, 0, err
	}
	os.Remove(s.log.Name()) // read through its descriptor only
	s.cmd.Stderr = s.log
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, 0, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, 0, fmt.Errorf("start the server: %w", err)
	}
	go s.read(out)
	a, err := s.ask(ctx, "initialize", map[string]any{
		"protocolVersion": "2025-11-25", "capabilities": map[string]any{},
		"clientInfo": map[string]any{"name": "bench", "version": "1"},
	})
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("initialize: %w", err), s.Close())
	}
	_, err = io.WriteString(s.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	return s, a.at.Sub(began), err
}

// read hands each line to the request that it answers, until the server's
// output ends. The server is the program under test, so lines have no limit.
func (s *server) read(out io.Reader) {
	defer close(s.done)
	lines := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		at := time.Now()
		if err != nil {
			return
		}
		var head struct {
			ID int `json:"id"`
		}
		if json.Unmarshal(line, &head) != nil {
			continue // a test of its own says what is wrong with such a line
		}
		s.mu.Lock()
		waiting := s.pending[head.ID]
		delete(s.pending, head.ID)
		s.mu.Unlock()
		if waiting != nil {
			waiting <- answer{line, at}
		}
	}
}

// ask sends one request and waits for its answer.
func (s *server) ask(ctx context.Context, method string, params any) (answer, error) {
	a, _, err := s.timed(ctx, method, params)
	return a, err
}

// timed is ask, and says how long the answer took, from the first byte
// written to the last byte read.
func (s *server) timed(ctx context.Context, method string, params any) (answer, time.Duration, error) {
	waiting := make(chan answer, 1)
	s.mu.Lock()
	s.last++
	id := s.last
	s.pending[id] = waiting
	s.mu.Unlock()
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	if err != nil {
		return answer{}, 0, err
	}
	line = append(line, '\n')
	s.write.Lock()
	began := time.Now()
	_, err = s.in.Write(line)
	s.write.Unlock()
	if err != nil {
		return answer{}, 0, fmt.Errorf("write to the server: %w: %s", err, s.said())
	}
	select {
	case a := <-waiting:
		return a, a.at.Sub(began), nil
	case <-s.done:
		return answer{}, 0, fmt.Errorf("the server ended: %s", s.said())
	case <-ctx.Done():
		return answer{}, 0, fmt.Errorf("the server gave no answer: %w: %s", ctx.Err(), s.said())
	}
}

// run calls the tool, checks that its answer's text is want (or begins with
// it, where the output is longer than an answer), and says how long it took.
func (s *server) run(ctx context.Context, environment, session, code, want string) (time.Duration, error) {
	arguments := map[string]any{"code": code, "env": environment}
	if session != "" {
		arguments["session"] = session
	}
	a, took, err := s.timed(ctx, "tools/call", map[string]any{"name": "run", "arguments": arguments})
	if err != nil {
		return 0, err
	}
	var reply struct {
		Error  *struct{ Message string }
		Result struct {
			IsError bool
			Content []struct{ Text string }
		}
	}
	if err := json.Unmarshal(a.line, &reply); err != nil {
		return 0, fmt.Errorf("the server's answer: %w", err)
	}
	var text string
	if len(reply.Result.Content) > 0 {
		text = strings.TrimSpace(reply.Result.Content[0].Text)
	}
	switch {
	case reply.Error != nil:
		return 0, fmt.Errorf("the server answered %s", brief(reply.Error.Message))
	case reply.Result.IsError || text != want && (len(text) < longest || !strings.HasPrefix(text, want)):
		return 0, fmt.Errorf("the server answered %s in place of %s", brief(text), brief(want))
	}
	return took, nil
}

// longest is the length of a text from which on it may be an output that was
// shortened: half of the 32 KB that the server gives back of a stream.
const longest = 16 << 10

// said is the end of the server's log.
func (s *server) said() string {
	log, _ := io.ReadAll(io.NewSectionReader(s.log, 0, 1<<20))
	return brief(string(bytes.TrimSpace(log)))
}

// sandboxes are the processes of the server's sandboxes.
func (s *server) sandboxes() []int {
	for _, pid := range tree(s.cmd.Process.Pid, "") {
		fields, err := stat(pid)
		if err == nil && fields[1] == fmt.Sprint(s.cmd.Process.Pid) {
			return tree(pid, "")[1:]
		}
	}
	return nil
}

// Close closes the server's input, which ends it, and waits for it.
func (s *server) Close() error {
	defer s.log.Close()
	s.in.Close()
	ended := time.AfterFunc(patience, func() { kill(s.cmd.Process.Pid, "") })
	defer ended.Stop()
	<-s.done
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("the server: %w: %s", err, s.said())
	}
	return nil
}

// prewarmed writes a copy of the metadata in which every environment has n
// sandboxes in stock, and returns the file's name.
func prewarmed(metadata map[string]any, n int, folder string) (string, error) {
	environments, _ := metadata["environments"].(map[string]any)
	for _, e := range environments {
		if e, ok := e.(map[string]any); ok {
			e["prewarm"] = n
		}
	}
	text, err := json.Marshal(metadata)
	if err != nil {
		return "", err
	}
	name := filepath.Join(folder, fmt.Sprintf("metadata-%d.json", n))
	return name, os.WriteFile(name, text, 0o644)
}

// A served call is a contender that asks a server of its own.
type served struct {
	name        string
	launch      launch
	environment string
	session     string // empty: a sandbox of its own for each call
	code, want  string
	server      *server
	cost        *meter
}

func (c *served) Name() string { return c.name }

func (c *served) Prepare(ctx context.Context) (err error) {
	c.launch.reaped = true
	if c.server, _, err = c.launch.start(ctx); err != nil {
		return err
	}
	c.cost = &meter{}
	return c.cost.begin(c.server.cmd.Process.Pid)
}

func (c *served) Call(ctx context.Context) (time.Duration, error) {
	c.cost.calls.Add(1)
	return c.server.run(ctx, c.environment, c.session, c.code, c.want)
}

func (c *served) CPU(context.Context) (time.Duration, error) { return c.cost.mean() }

// Settle waits for the end of a sandbox that was used up, and of its
// successor's start. A session has neither.
func (c *served) Settle(ctx context.Context) {
	if c.session == "" {
		quiet(ctx, c.server.cmd.Process.Pid)
	}
}

// Memory weighs the sandboxes: of a session one, and nothing in stock.
func (c *served) Memory(ctx context.Context) (int64, error) {
	return memory(c.server.sandboxes())
}

func (c *served) Close() error { return c.server.Close() }

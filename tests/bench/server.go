package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// keepNone is for rows that compare calls: what saves files works between them, and has rows of its own
// (kept.go).
const keepNone = "SESSION_KEEP_FILES=0"

// A server is a running nix-sandbox-mcp and the client's side of it.
type server struct {
	*mcpclient.Client
	cmd *exec.Cmd
	log *os.File
}

// launch is how servers are started.
type launch struct {
	program  string
	metadata string // file; empty where the server's configuration names its environments
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
	s = &server{cmd: exec.Command(argv[0], argv[1:]...)}
	s.cmd.Env = append([]string{"NIX_SANDBOX_DIR=/var/empty", keepNone}, l.env...)
	if l.metadata != "" {
		s.cmd.Env = append(s.cmd.Env, "NIX_SANDBOX_METADATA="+l.metadata)
	}
	if s.log, err = os.CreateTemp("", "nix-sandbox-bench-*.log"); err != nil {
		return nil, 0, err
	}
	os.Remove(s.log.Name()) // read through its descriptor only
	s.cmd.Stderr = s.log
	began := time.Now()
	// The server's own tests are about breaches of the protocol.
	if s.Client, err = mcpclient.Start(s.cmd, func(string) {}); err != nil {
		return nil, 0, err
	}
	hello, err := s.Initialize(ctx, mcpclient.Newest, "bench")
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("%w: %s", err, s.lastLog()), s.Close())
	}
	return s, hello.At.Sub(began), nil
}

// run calls the tool, checks that its answer's text is want (or begins with
// it, where the output is longer than an answer), and says how long it took.
func (s *server) run(ctx context.Context, environment, session, code, want string) (time.Duration, error) {
	id, line, err := s.Request("tools/call", mcpclient.RunParams(mcpclient.Arguments{Code: code, Env: environment, Session: session}))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	_, written := s.Write(line)
	message, err := s.Await(ctx, id)
	if err := errors.Join(written, err); err != nil {
		return 0, fmt.Errorf("%w: %s", err, s.lastLog())
	}
	answer, err := message.Answer()
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(answer.Text())
	if answer.IsError || text != want && (len(text) < longest || !strings.HasPrefix(text, want)) {
		return 0, fmt.Errorf("the server answered %s in place of %s", brief(text), brief(want))
	}
	return message.At.Sub(began), nil
}

// longest is the length of a text from which on it may be an output that was
// shortened: half of the 32 KB that the server gives back of a stream.
const longest = 16 << 10

// lastLog returns the last line of the server's log.
func (s *server) lastLog() string {
	log, _ := io.ReadAll(io.NewSectionReader(s.log, 0, 1<<20))
	return brief(string(log))
}

// process returns the server's own process: of one under [reap], its child.
func (s *server) process() (int, error) {
	for _, p := range procfs.All() {
		if p.Parent == s.PID() {
			return p.PID, nil
		}
	}
	return 0, fmt.Errorf("process %d has no child", s.PID())
}

// Close closes the server's input, which ends it, and waits for it.
func (s *server) Close() error {
	defer s.log.Close()
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { kill(s.PID(), "") })
	defer stop()
	if err := s.Client.Close(ctx); err != nil {
		return fmt.Errorf("%w: %s", err, s.lastLog())
	}
	return nil
}

// prewarmed writes a copy of the metadata in which prewarm of every environment
// is n, and returns the file's name.
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
	first       string // code of a call before those that are measured; empty: none
	works       bool   // also between the calls of a session
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
	if c.first != "" {
		if _, err := c.server.run(ctx, c.environment, c.session, c.first, "[no output]"); err != nil {
			return err
		}
	}
	c.cost = &meter{}
	c.cost.begin(c.server.PID())
	return nil
}

func (c *served) Call(ctx context.Context) (time.Duration, error) {
	c.cost.calls.Add(1)
	return c.server.run(ctx, c.environment, c.session, c.code, c.want)
}

func (c *served) CPU(context.Context) (time.Duration, error) { return c.cost.mean(), nil }

// Settle waits for the end of a sandbox that was used up, and of its
// successor's start. A session has neither; what it does after an answer is waited for.
func (c *served) Settle(ctx context.Context) {
	if c.session == "" || c.works {
		quiet(ctx, c.server.PID())
	}
}

// Memory returns the memory of the sandbox of one session; the pool is empty.
func (c *served) Memory(ctx context.Context) (int64, error) {
	server, err := c.server.process()
	if err != nil {
		return 0, err
	}
	return procfs.Memory(procfs.Descendants(server)...)
}

func (c *served) Close() error { return c.server.Close() }

// Package clients tries a built server with the clients that people use, as
// their makers publish them: MCP Inspector's command line, the conformance
// suite, Claude Code and Codex.
//
// NIX_SANDBOX_MCP_SERVER names the server and NIX_SANDBOX_TEST_CLIENTS the
// folder that tests/clients/install filled; without them the tests are
// skipped. The messages between a client and the server are kept in the
// folder that NIX_SANDBOX_TEST_TRANSCRIPTS names, one file a test: lines that
// begin with > are the client's, with < the server's, with ! what the client
// printed.
package clients

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
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// clientTime is what a client may take: they are large programs that start from
// a cold cache.
const clientTime = 2 * time.Minute

// recordVerb makes the test's own program a server: it starts the real one
// and writes down what passes.
//
//	clients.test record TRANSCRIPT SERVER ARGUMENT...
const recordVerb = "record"

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == recordVerb {
		os.Exit(record(os.Args[2], os.Args[3:]))
	}
	os.Exit(mcptest.Main(m))
}

// record runs a server between its own standard streams and returns its exit
// status.
func record(transcript string, server []string) int {
	file, err := os.OpenFile(transcript, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer file.Close()
	var writing sync.Mutex
	pass := func(to io.Writer, from io.Reader, mark string) {
		lines := bufio.NewReader(from)
		for {
			line, err := lines.ReadBytes('\n')
			if len(line) > 0 {
				writing.Lock()
				fmt.Fprintf(file, "%s %s\n", mark, bytes.TrimRight(line, "\n"))
				writing.Unlock()
				if _, err := to.Write(line); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	cmd := exec.Command(server[0], server[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		pass(in, os.Stdin, ">")
		in.Close()
	}()
	pass(os.Stdout, out, "<")
	// If the status is not 0, the client reports it, or the test finds what was
	// left behind.
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// setup is what a test of a client works with.
type setup struct {
	undertest.Clients
	server     string
	home       string   // the client's own folder, empty at first
	programs   string   // has the clients by the names of their commands
	variables  []string // of its environment, besides those that every client has
	transcript string
}

// given skips the test unless it is told where the server and the clients are.
func given(t *testing.T) (server string, clients undertest.Clients) {
	t.Helper()
	clients, ok := undertest.InstalledClients(t)
	if !ok {
		t.Skip(undertest.ClientsVariable + " does not name the folder that tests/clients/install filled")
	}
	return undertest.Server(t), clients
}

func prepare(t *testing.T) setup {
	t.Helper()
	server, clients := given(t)
	transcripts := os.Getenv("NIX_SANDBOX_TEST_TRANSCRIPTS")
	if transcripts == "" {
		transcripts = t.TempDir()
	}
	s := setup{
		server: server, Clients: clients, home: t.TempDir(), programs: t.TempDir(),
		transcript: filepath.Join(transcripts, strings.ReplaceAll(t.Name(), "/", "-")+".txt"),
	}
	gemini := fmt.Sprintf("#!/bin/sh\nexec %q %q \"$@\"\n", s.Node, s.Gemini)
	must.Do(t, os.WriteFile(filepath.Join(s.programs, "gemini"), []byte(gemini), 0o755))
	for name, program := range map[string]string{"claude": s.Claude, "codex": s.Codex} {
		must.Do(t, os.Symlink(program, filepath.Join(s.programs, name)))
	}
	var err error
	if s.transcript, err = filepath.Abs(s.transcript); err != nil {
		t.Fatal(err)
	}
	must.Do(t, os.MkdirAll(filepath.Dir(s.transcript), 0o755))
	if err := os.Remove(s.transcript); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return s
}

// file is a file of the installed clients.
func (s setup) file(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(s.Folder, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the installed clients lack %s: %v", name, err)
	}
	return path
}

// recorded is the command by which a client starts the server.
func (s setup) recorded(t *testing.T) []string {
	t.Helper()
	self := must.Get(os.Executable())(t)
	return []string{self, recordVerb, s.transcript, s.server, "--stdio"}
}

// command is a client with a home of its own and nothing else of this process's
// environment. It ends with the test, or when it has had its time.
func (s setup) command(t *testing.T, program string, arguments ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), clientTime) // it is awaited in a clean-up
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Env = append([]string{
		"HOME=" + s.home,
		"TMPDIR=" + s.home,
		"PATH=" + s.programs + ":" + filepath.Dir(s.Node) + ":" + os.Getenv("PATH"),
		"NIX_SANDBOX_DIR=" + filepath.Join(s.home, "sandboxes"),
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
	}, s.variables...)
	cmd.Dir = s.home
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// output is what a client printed, and its exit status.
type output struct {
	stdout, stderr string
	status         int
}

// run runs a client to its end, and fails the test if a process is left of it.
func (s setup) run(t *testing.T, program string, arguments ...string) output {
	t.Helper()
	cmd := s.command(t, program, arguments...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v\n%s", program, err, &stderr)
	}
	patience.Gone(t, s.left()...)
	out := output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	s.note(t, out.stdout+out.stderr)
	return out
}

// left are the processes whose home is this test's.
func (s setup) left() []int {
	return procfs.WithVariable("HOME", s.home)
}

// note adds what a client printed to the transcript.
func (s setup) note(t *testing.T, text string) {
	t.Helper()
	file := must.Get(os.OpenFile(s.transcript, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644))(t)
	defer file.Close()
	for line := range strings.Lines(text) {
		fmt.Fprintf(file, "! %s\n", strings.TrimRight(line, "\n"))
	}
}

// methods are what the client asked for, in order.
func (s setup) methods(t *testing.T) []string {
	t.Helper()
	text := must.Get(os.ReadFile(s.transcript))(t)
	var methods []string
	for line := range strings.Lines(string(text)) {
		said, ok := strings.CutPrefix(line, "> ")
		if !ok {
			continue
		}
		var message struct{ Method string }
		if err := json.Unmarshal([]byte(said), &message); err != nil {
			t.Fatalf("the client wrote %.200q: %v", said, err)
		}
		methods = append(methods, message.Method)
	}
	return methods
}

// The control: a process that a client leaves behind is found.
func TestLeftFindsWhatStays(t *testing.T) {
	s := setup{home: t.TempDir()}
	cmd := exec.Command("sleep", "60")
	cmd.Env = []string{"HOME=" + s.home}
	must.Do(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if left := s.left(); len(left) != 1 || left[0] != cmd.Process.Pid {
		t.Errorf("left %v, want %d", left, cmd.Process.Pid)
	}
}

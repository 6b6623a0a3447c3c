// The command demo talks to a built server as an MCP client does, and prints
// the conversation. It exits with 1 if an answer is not what the README
// promises.
//
//	demo PATH/bin/nix-sandbox-mcp
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
)

// step is one call and what its answer must contain.
type step struct {
	title   string
	env     string
	session string
	code    string
	isError bool
	holds   string
	lacks   string
}

// limit is the time limit of the server that shows a timeout, in seconds.
const limit = 2

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: demo PATH/bin/nix-sandbox-mcp")
		os.Exit(2)
	}
	if err := demonstrate(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "demo: error: %v\n", err)
		os.Exit(1)
	}
}

func demonstrate(server string) error {
	// A file that any process of this user can read, with a word in it that
	// no sandbox can know.
	word := fmt.Sprintf("host-secret-%d", time.Now().UnixNano())
	folder, err := os.MkdirTemp("", "nix-sandbox-mcp-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	secret := filepath.Join(folder, "secret")
	if err := os.WriteFile(secret, []byte(word+"\n"), 0o644); err != nil {
		return err
	}

	heading("A client connects")
	began := time.Now()
	err = with(server, nil, func(c *mcpclient.Client, hello hello) error {
		note("%s %s answered initialize %s after its start", hello.ServerInfo.Name, hello.ServerInfo.Version, took(began))
		return show(c, steps(secret, word))
	})
	if err != nil {
		return err
	}

	heading("The same server with a limit of %d s a call", limit)
	metadata, err := limited(server)
	if err != nil {
		return err
	}
	err = with(server, []string{"NIX_SANDBOX_METADATA=" + metadata}, func(c *mcpclient.Client, _ hello) error {
		return show(c, []step{{
			title: "A call that never ends", env: "bash",
			code:    "echo working; sleep 999",
			isError: true, holds: "timed out",
		}})
	})
	if err != nil {
		return err
	}

	heading("To give it to an MCP client")
	fmt.Printf("\n  %s client-config claude-code --install\n", server)
	note("adds the server to Claude Code, and its --help names the other clients; by hand, a client is told:")
	config := map[string]any{"mcpServers": map[string]any{"sandbox": map[string]any{
		"command": server, "args": []string{"--stdio"},
	}}}
	text, err := json.MarshalIndent(config, "  ", "  ")
	if err != nil {
		return err
	}
	fmt.Printf("\n  %s\n\n", text)
	return nil
}

// answerLimit is how long one answer may take before the demonstration ends.
const answerLimit = 60 * time.Second

// hello is what a server says about itself.
type hello struct {
	ServerInfo struct{ Name, Version string }
}

// with starts the server with additional variables, gives do a client of it, and
// ends it by the end of its input. Where something fails, the server's log is
// kept.
func with(server string, variables []string, do func(*mcpclient.Client, hello) error) error {
	log, err := os.CreateTemp("", "nix-sandbox-mcp-demo-*.log")
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(server, "--stdio")
	cmd.Env = append(os.Environ(), variables...)
	cmd.Stderr = log
	c, err := mcpclient.Start(cmd, func(fault string) { fmt.Fprintln(log, fault) })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	var greeting hello
	reply, err := c.Initialize(ctx, mcpclient.Newest, "demo")
	if err == nil {
		err = json.Unmarshal(reply.Result, &greeting)
	}
	if err == nil {
		err = do(c, greeting)
	}
	closing, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	if err = errors.Join(err, c.Close(closing)); err != nil {
		return fmt.Errorf("%w; the server's log is %s", err, log.Name())
	}
	return os.Remove(log.Name())
}

// steps are the calls of the demonstration: secret is a file of the host, and
// word is what it holds.
func steps(secret, word string) []step {
	return []step{
		{
			title: "Python", env: "python",
			code:  "import sys, statistics\nprint('python', sys.version.split()[0])\nstatistics.median([3, 1, 4, 1, 5, 9, 2, 6])",
			holds: "3.5",
		},
		{
			title: "Bash", env: "bash",
			code:  `printf '{"colour":"green"}' | jq -r .colour; pwd; ls -A / | tr '\n' ' '`,
			holds: "/workspace",
		},
		{
			title: "JavaScript", env: "node",
			code:  "const words = ['sandboxes', 'are', 'quick'];\nconsole.log(words.toSorted().join(' '))",
			holds: "are quick sandboxes",
		},
		{
			title: "A session keeps what the last call left", env: "python", session: "sums",
			code: "squares = [n * n for n in range(10)]",
		},
		{
			title: "… and the next call finds it", env: "python", session: "sums",
			code: "sum(squares)", holds: "285",
		},
		{
			title: "No way out: a connection to 1.1.1.1", env: "python",
			code:    "import socket\nsocket.create_connection(('1.1.1.1', 443), timeout=3)",
			isError: true, holds: "OSError",
		},
		{
			title: "No way in: a file that everybody on the host can read", env: "bash",
			code:    "cat " + secret,
			isError: true, holds: "No such file", lacks: word,
		},
		{
			title: "An environment that nobody configured", env: "ruby",
			code: "puts 1", isError: true, holds: "python",
		},
	}
}

// limited returns the metadata that the server was built with, with another
// time limit.
func limited(server string) (string, error) {
	name := filepath.Join(filepath.Dir(server), "..", "share", "nix-sandbox-mcp", "metadata.json")
	text, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("read the built metadata: %w", err)
	}
	var metadata map[string]any
	if err := json.Unmarshal(text, &metadata); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	environments, _ := metadata["environments"].(map[string]any)
	for _, environment := range environments {
		if fields, ok := environment.(map[string]any); ok {
			fields["timeout_seconds"] = limit
		}
	}
	text, err = json.Marshal(metadata)
	return string(text), err
}

// thinking is the time before each call, less than a model takes. A sandbox waits for it meanwhile.
const thinking = 500 * time.Millisecond

// show makes the calls and prints them; the error is an answer that is not as
// it should be.
func show(c *mcpclient.Client, steps []step) error {
	for _, s := range steps {
		heading("%s", s.title)
		call := fmt.Sprintf("run(env: %q", s.env)
		if s.session != "" {
			call += fmt.Sprintf(", session: %q", s.session)
		}
		quote(dim, call+")\n"+s.code)
		time.Sleep(thinking)
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
		reply, err := c.Call(ctx, "tools/call", mcpclient.RunParams(mcpclient.Arguments{Code: s.code, Env: s.env, Session: s.session}))
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
		a, err := reply.Answer()
		if err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
		colour := green
		if a.IsError {
			colour = yellow
		}
		quote(colour, a.Text())
		note("%s", took(began))
		switch {
		case a.IsError != s.isError:
			return fmt.Errorf("%s: isError is %v", s.title, a.IsError)
		case !strings.Contains(a.Text(), s.holds):
			return fmt.Errorf("%s: the answer does not hold %q", s.title, s.holds)
		case s.lacks != "" && strings.Contains(a.Text(), s.lacks):
			return fmt.Errorf("%s: the answer holds %q", s.title, s.lacks)
		}
	}
	return nil
}

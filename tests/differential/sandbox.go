package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
)

// timedOut is the status of a run that took too long.
const timedOut = 124

// server is the server under test.
type server struct {
	client       *mcpclient.Client
	environments map[string]described // by the interpreter's type
	sessions     atomic.Int64
}

func startServer(ctx context.Context, program, stage string) (*server, error) {
	all, err := metadata(program)
	if err != nil {
		return nil, err
	}
	environments := map[string]described{}
	for name, e := range all {
		e.name = name
		environments[e.InterpreterType] = e
	}
	cmd := exec.Command(program, "--stdio")
	cmd.Env = append(os.Environ(), "PROJECT_DIR="+stage, "PROJECT_MODE=readonly", "SESSION_MAX=1000", "SESSION_IDLE_TIMEOUT=10")
	client, err := mcpclient.Start(cmd, func(fault string) { fmt.Fprintln(os.Stderr, "differential:", fault) })
	if err != nil {
		return nil, err
	}
	if _, err := client.Initialize(ctx, mcpclient.Newest, "differential"); err != nil {
		return nil, err
	}
	return &server{client: client, environments: environments}, nil
}

func (s *server) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = s.client.Close(ctx)
}

// copying is code that puts the files of a case into the workspace.
var copying = map[string]string{
	"python": "import shutil as _s; _s.copytree(%q, '.', dirs_exist_ok=True); del _s",
	"node":   "require('fs').cpSync(%q, '.', { recursive: true })",
	"bash":   "cp -r %q/. .",
}

func (s *server) run(ctx context.Context, c testCase, timeout time.Duration) (result, error) {
	environment, ok := s.environments[c.language]
	if !ok {
		return result{}, errors.New(noEnvironment + c.language)
	}
	arguments := mcpclient.Arguments{Env: environment.name}
	if environment.Most > environment.Usual {
		arguments.Timeout = min(timeout.Seconds(), environment.Most)
	}
	if c.session || c.hasFiles {
		arguments.Session = fmt.Sprintf("case-%d", s.sessions.Add(1))
		arguments.Code = fmt.Sprintf(copying[c.language], "/project/"+c.folder+"/files")
		if _, err := s.call(ctx, arguments, timeout); err != nil {
			return result{}, err
		}
	}
	var all result
	for _, code := range c.calls {
		arguments.Code = code
		begin := time.Now()
		answer, err := s.call(ctx, arguments, timeout)
		if err != nil {
			return result{}, err
		}
		all.took += time.Since(begin)
		r := run{known: true}
		kinds, _ := answer.Fact("content").([]any)
		for i, content := range answer.Content {
			switch {
			case content.Type == "image":
				r.images++
			case content.Type != "text" || i >= len(kinds):
			case kinds[i] == "stdout":
				r.stdout = content.Text
			case kinds[i] == "stderr":
				r.stderr = strings.TrimPrefix(content.Text, "--- stderr ---\n")
				all.marks += len(content.Text) - len(r.stderr)
			default:
				all.marks += len(content.Text)
			}
			all.bytes += len(content.Text)
		}
		status, _ := answer.Fact("exit_code").(float64)
		r.status = int(status)
		switch outcome := answer.Fact("outcome"); outcome {
		case "ok", "failed":
		case "timeout":
			r.status = timedOut
		default:
			r.status = -1
			r.stderr += fmt.Sprintf("outcome %v", outcome)
		}
		all.runs = append(all.runs, r)
	}
	if arguments.Session != "" {
		// The session ends with its interpreter, and makes room for the next one.
		arguments.Code = map[string]string{"python": "import os; os._exit(0)", "node": "process.kill(process.pid, 'SIGKILL')", "bash": "kill -9 $$"}[c.language]
		_, _ = s.call(ctx, arguments, timeout)
	}
	return all, nil
}

func (s *server) call(ctx context.Context, arguments mcpclient.Arguments, timeout time.Duration) (mcpclient.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout+time.Minute)
	defer cancel()
	message, err := s.client.Call(ctx, "tools/call", mcpclient.RunParams(arguments))
	if err != nil {
		return mcpclient.Answer{}, err
	}
	return message.Answer()
}

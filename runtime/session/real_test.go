package session_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

func TestMain(m *testing.M) { os.Exit(mcptest.Main(m)) }

// Over real sandboxes a session keeps its state, a cancellation interrupts and
// keeps it, a death loses it, and nothing is left at the end.
func TestRealSandboxes(t *testing.T) {
	set, starter := sandboxtest.Real(t)
	bash := set.Environments["bash"]
	sessions := session.New(session.Options{Starter: starter, Spec: sandboxtest.Spec, OneShot: session.OneShot(starter, sandboxtest.Spec, nil), Limits: session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: 8}, Log: slog.New(slog.DiscardHandler)})
	defer sessions.Close()
	var progress sandbox.Progress
	run := func(ctx context.Context, session, code string) (call.Result, error) {
		return sessions.Answer(ctx, call.Call{Env: bash, Session: session, Code: code, Progress: &progress})
	}
	for _, step := range []struct{ session, code, want string }{
		{"a", "x=1; echo $x", "1\n"}, {"b", "echo none$x", "none\n"}, {"a", "echo $((x+1))", "2\n"}, {"", "echo once$x", "once\n"},
	} {
		if result, err := run(t.Context(), step.session, step.code); err != nil || result.Stdout.Head != step.want {
			t.Errorf("%s: answer %+v, error %v", step.code, result, err)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		// If its output were never seen, the code would end at its time limit.
		for ctx.Err() == nil {
			if stdout, _, line := progress.Now(2); line == "begun" && stdout == (sandbox.Text{Tail: "n\n", Cut: 4}) {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	result, err := run(ctx, "a", "echo begun; sleep 99")
	if err != nil || result.Outcome != frame.OutcomeCancelled || result.State != frame.StateKept {
		t.Errorf("cancelled: answer %+v, error %v", result, err)
	}
	if result, err := run(t.Context(), "a", "echo $x"); err != nil || result.Stdout.Head != "1\n" {
		t.Errorf("after it: answer %+v, error %v", result, err)
	}

	broken := bash
	broken.SessionExec = "/nowhere/session-run"
	var start *call.StartError
	if _, err := sessions.Answer(t.Context(), call.Call{Env: broken}); !errors.As(err, &start) {
		t.Errorf("error %v", err)
	}
}

// Over real sandboxes the environments of a session have one workspace, of one size,
// and of one user where root starts them. It outlives a sandbox, and nothing is left
// of it at the end.
func TestRealSandboxes_ShareFiles(t *testing.T) {
	set, starter := sandboxtest.Real(t)
	bash, hasBash := set.Environments["bash"]
	python, hasPython := set.Environments["python"]
	if !hasBash || !hasPython {
		t.Skip("there is no bash or no python")
	}
	before := must.Get(procfs.Descriptors(os.Getpid()))(t)
	sessions := session.New(session.Options{Starter: starter, Spec: sandboxtest.Spec, OneShot: session.OneShot(starter, sandboxtest.Spec, nil), Limits: session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: 8}, Log: slog.New(slog.DiscardHandler)})
	sessions.Workspaces = starter.(sandbox.Workspaces)
	run := func(env registry.Environment, code string) (call.Result, error) {
		return sessions.Answer(t.Context(), call.Call{Env: env, Session: "s", Code: code})
	}
	for _, step := range []struct {
		env        registry.Environment
		code, want string
	}{
		{bash, "x=1; echo of bash >file; stat -c %U . file", "UNKNOWN\nUNKNOWN\n"},
		{python, "open('file', 'a').write('of python\\n')\nimport os\nprint(os.stat('file').st_uid == os.getuid(), os.statvfs('.').f_blocks * os.statvfs('.').f_frsize >> 20)", "True 256\n"},
		{bash, "cat file; rm file; echo $x", "of bash\nof python\n1\n"},
		{python, "print(os.path.exists('file'))", "False\n"},
		{bash, "mkdir -p outputs; echo 1 >outputs/bash.txt", ""},
	} {
		result, err := run(step.env, step.code)
		if err != nil || result.Stdout.Head != step.want || result.Restart != nil {
			t.Errorf("%s: answer %+v, error %v", step.code, result, err)
		}
	}
	// What another environment left in outputs is not this call's.
	result, err := run(python, "open('outputs/python.txt', 'w').close()")
	if err != nil || len(result.Files) != 1 || result.Files[0].Path != "/workspace/outputs/python.txt" {
		t.Errorf("answer %+v, error %v", result, err)
	}
	// Of the outer namespace there is neither a folder nor a capability.
	result, err = run(bash, "ls -d /shared /room 2>/dev/null; grep Cap /proc/self/status | grep -cv 0000000000000000; ls /proc/self/fd | wc -l")
	if err != nil || result.Stdout.Head != "0\n7\n" {
		t.Errorf("answer %+v, error %v", result, err)
	}
	if result, err = run(bash, "ls outputs; echo $x"); err != nil || result.Stdout.Head != "bash.txt\npython.txt\n1\n" {
		t.Errorf("answer %+v, error %v", result, err)
	}
	broken := python
	broken.Name, broken.SessionExec = "broken", "/nowhere/session-run"
	var start *call.StartError
	if _, err := run(broken, "1"); !errors.As(err, &start) || start.Env != "broken" {
		t.Errorf("error %v", err)
	}
	sessions.Close()
	patience.Gone(t, procfs.Descendants(os.Getpid())...)
	patience.Until(t, "no descriptor is left", func() bool {
		return must.Get(procfs.Descriptors(os.Getpid()))(t) <= before+2 // the runtime's own poller
	})
}

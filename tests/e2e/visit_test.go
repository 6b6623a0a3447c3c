package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// Sessions of principals are theirs: the machine's user sees that they exist, and enters none of
// them by any name, nor reaches their ports. No principal is told of a port. The control is a session
// of a server with one client.
func TestVisit_SessionsOfPrincipalsAreTheirs(t *testing.T) {
	t.Parallel()
	runtime := "XDG_RUNTIME_DIR=" + t.TempDir()
	metadata := "NIX_SANDBOX_METADATA=" + mcptest.MetadataWith(t, environments(t), map[string]any{
		"serve":   mcptest.Serve(map[string]any{"lame_duck_seconds": 0}),
		"session": mcptest.Session(map[string]any{"forward": true, "shared_files": false}),
	})
	s := startHTTP(t, []string{"alice", "bob"}, nil, nil, runtime, metadata)
	const listen = "import socket; l = socket.create_server(('127.0.0.1', 8000)); print('listens')"
	for _, name := range []string{"alice", "bob"} {
		if answer := inHTTP(t, s.client(name, mcptest.Newest), "work", "python", listen); answer.Text() != "listens\n" && answer.Text() != "listens" {
			t.Errorf("%s is told %q", name, answer.Text())
		}
	}
	visit := func(args ...string) (string, error) {
		cmd := exec.Command(undertest.Server(t), args...)
		cmd.Env = append(command(t).Env, runtime)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	list, err := visit("sessions")
	if must.Do(t, err); !strings.Contains(list, "\nalice/work ") || !strings.Contains(list, "\nbob/work ") {
		t.Errorf("the list is %s", list)
	}
	for _, name := range []string{"alice/work", "bob/work"} {
		for _, args := range [][]string{{"forward", name, "8000"}} {
			if out, err := visit(args...); err == nil || !strings.Contains(out, "who is a principal over HTTP: it is theirs alone") {
				t.Errorf("%v: %v, %s", args, err, out)
			}
		}
	}
	s.end()
	c := mcptest.Start(t, command(t, runtime, metadata))
	c.Initialize(mcptest.Newest)
	if answer := in(c, "work", "python", listen); !strings.Contains(answer.Text(), "forward work 8000") {
		t.Errorf("answer %q", answer.Text())
	}
	if out, err := visit("exec", "--session", "work", "--", "true"); err != nil {
		t.Errorf("the control: %v, %s", err, out)
	}
}

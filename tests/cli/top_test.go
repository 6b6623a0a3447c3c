package cli

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// top shows the servers of its user as they work, and what clients chose as plain text.
func TestTop_ShowsWhatServersDo(t *testing.T) {
	runtime := "XDG_RUNTIME_DIR=" + t.TempDir()
	serve := func(session string) *mcptest.Client {
		home := t.TempDir()
		cmd := exec.Command(undertest.Server(t), "--stdio")
		cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "NIX_SANDBOX_DIR=" + filepath.Join(home, "sandboxes"), runtime}
		c := mcptest.Start(t, cmd)
		c.Initialize(mcptest.Newest)
		c.Run(mcptest.Arguments{Code: "true", Env: "bash", Session: session})
		return c
	}
	top := func(args ...string) *exec.Cmd {
		cmd := command(t, append([]string{"top"}, args...)...)
		cmd.Env = append(cmd.Env, runtime)
		return cmd
	}
	// Without a server, it says how to have one.
	out, _ := top().CombinedOutput()
	if !strings.Contains(string(out), "error: no server of this user runs, or has answered its client yet\n") {
		t.Errorf("without a server: %s", out)
	}
	first := serve("first")
	first.Run(mcptest.Arguments{Code: "true", Env: "evil\x1b[2J\x1b]0;title\a\u009b31m\u202eenv"})
	sees := func(args ...string) string {
		t.Helper()
		text := string(must.Get(top(args...).Output())(t))
		if strings.ContainsAny(text, "\x1b\u009b\u202e") {
			t.Errorf("control characters of a client: %q", text)
		}
		return text
	}
	text := sees()
	for _, want := range []string{"(the one client)", "\nfirst ", "evil [2J ]0;title 31m env"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	// What happens now is shown, of each server, and the newest is the first.
	id := first.SendRun(mcptest.Arguments{Code: "sleep 900", Env: "bash", Session: "busy"})
	second := serve("second")
	patience.Wait(t, patience.Long, func() string { return "the running call is not shown:\n" + text }, func() bool {
		text = sees()
		return strings.Contains(text, "1 running call") && strings.Contains(text, "in use")
	})
	if one, two := strings.Index(text, "\nfirst "), strings.Index(text, "\nsecond "); two < 0 || one < two {
		t.Errorf("second is at %d and first at %d:\n%s", two, one, text)
	}
	// With --watch it is printed again.
	again := top("--watch")
	stdout := must.Get(again.StdoutPipe())(t)
	must.Do(t, again.Start())
	lines := bufio.NewScanner(stdout)
	for seen := 0; seen < 3 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "nix-sandbox-mcp "+undertest.Version(t)+", process ") {
			seen++
		}
	}
	must.Do(t, again.Process.Signal(os.Interrupt))
	if err := again.Wait(); err == nil || again.ProcessState.ExitCode() != -1 {
		t.Errorf("Ctrl-C ends it with %v", err)
	}
	// A server that was killed is not among them.
	second.Signal(9)
	patience.Wait(t, patience.Long, func() string { return "the server that was killed is still shown" }, func() bool {
		text := sees()
		return strings.Contains(text, "\nfirst ") && !strings.Contains(text, "\nsecond ")
	})
	first.Notify("notifications/cancelled", map[string]any{"requestId": id})
}

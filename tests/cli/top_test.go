package cli

import (
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
	out, _ := top("--once").CombinedOutput()
	if !strings.Contains(string(out), "error: no server of this user runs, or has answered its client yet\n") {
		t.Errorf("without a server: %s", out)
	}
	first := serve("first")
	first.Run(mcptest.Arguments{Code: "true", Env: "evil\x1b[2J\x1b]0;title\a\u009b31m\u202eenv"})
	u := startOnTerminal(t, 40, 120, top())
	u.sees("(the one client)")
	u.sees("\nfirst ")
	u.sees("evil [2J ]0;title 31m env")
	u.sees("\nq: quit")
	// What happens now is shown.
	id := first.SendRun(mcptest.Arguments{Code: "sleep 900", Env: "bash", Session: "busy"})
	u.sees("1 running call")
	u.sees("in use")
	second := serve("second")
	u.sees("server 2 of 2 · n: next · q: quit")
	u.types("n")
	u.sees("\nsecond ")
	u.resize(8, 60)
	// It is drawn again: long lines are cut, and the last line is at the foot.
	patience.Wait(t, patience.Long, func() string { return "the screen is not drawn for its new size:\n" + u.display.String() }, func() bool {
		lines := strings.Split(u.display.String(), "\n")
		return len(lines) == 8 && strings.HasPrefix(lines[0], "nix-sandbox-mcp "+undertest.Version(t)+", process ") &&
			lines[7] == "server 1 of 2 · n: next · q: quit"
	})
	u.types("q")
	if status := u.awaitExit(); status != 0 {
		t.Errorf("status %d", status)
	}
	if changed := u.display.changed(); len(changed) > 0 {
		t.Errorf("the terminal is left with %q", changed)
	}
	// A pipe gets one snapshot.
	text := string(must.Get(top().Output())(t))
	if !strings.Contains(text, "\nsecond ") || strings.ContainsAny(text, "\x1b") {
		t.Errorf("to a pipe: %q", text)
	}
	// A server that was killed is not among them.
	second.Signal(9)
	patience.Wait(t, patience.Long, func() string { return "the server that was killed is still shown" }, func() bool {
		out, _ := top("--once").Output()
		return strings.Contains(string(out), "\nfirst ")
	})
	first.Notify("notifications/cancelled", map[string]any{"requestId": id})
}

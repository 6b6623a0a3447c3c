package backends

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// left returns the commands of processes that a server or launcher has left to this process, without those that
// only wait to be reaped, which are reaped.
func left(t *testing.T) (commands []string) {
	t.Helper()
	for _, pid := range procfs.Descendants(os.Getpid()) {
		if p, err := procfs.Read(pid); err == nil && procfs.Runs(pid) {
			commands = append(commands, fmt.Sprintf("%d %.100s", pid, p.Command()))
			continue
		}
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // the error is that it was another's child
	}
	return commands
}

// A server or launcher that is killed at any moment of a start, a call or an idle wait leaves no process. Not in
// parallel, so that every process is this test's.
func TestKill_LeavesNoProcess(t *testing.T) {
	kills := 4
	if isLong() {
		kills = 20
	}
	random := seed.New(t)
	folder := artifact(t, "bash")
	cache := shared(t)
	// Whatever loses its parent becomes a child of this process.
	must.Do(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	if already := left(t); len(already) > 0 {
		t.Fatalf("before, there are %q", already)
	}
	for n := range kills {
		// A copy is up after about half a second; the call lasts longer.
		after := time.Duration(random.Int64N(int64(2 * time.Second)))
		var victim int
		switch n % 2 {
		case 0:
			cmd := exec.Command(undertest.Server(t), "--stdio")
			state := t.TempDir()
			must.Do(t, os.MkdirAll(state+"/sandboxes", 0o700))
			must.Do(t, os.Symlink(folder, state+"/sandboxes/machine"))
			cmd.Env = []string{"HOME=" + state, "TMPDIR=" + state, "XDG_STATE_HOME=" + state, "XDG_CACHE_HOME=" + cache, "NIX_SANDBOX_DIR=" + state + "/sandboxes", "NIX_SANDBOX_START_SECONDS=60"}
			c := mcptest.Start(t, cmd)
			c.Initialize(mcptest.Newest)
			go func() {
				_, _ = c.Call(context.Background(), "tools/call", mcpclient.RunParams(mcpclient.Arguments{Code: "sleep 30", Env: "machine", Session: "s"}))
			}()
			time.Sleep(after)
			victim = c.PID()
			must.Do(t, syscall.Kill(victim, syscall.SIGKILL))
			<-c.Exited()
		case 1:
			cmd := exec.Command(folder + "/bin/session-run")
			cmd.Env = []string{"HOME=" + cache, "XDG_CACHE_HOME=" + cache}
			input := must.Get(cmd.StdinPipe())(t)
			must.Do(t, cmd.Start())
			time.Sleep(after)
			victim = cmd.Process.Pid
			must.Do(t, syscall.Kill(victim, syscall.SIGKILL))
			_ = cmd.Wait()
			_ = input.Close()
		}
		var still []string
		patience.Wait(t, time.Minute, func() string {
			return fmt.Sprintf("%v after its start, process %d was killed, and there are still:\n%s", after, victim, strings.Join(still, "\n"))
		}, func() bool {
			still = left(t)
			return len(still) == 0
		})
	}
}

// Package e2e tests a built server as its clients and its operator meet it:
// through its standard streams, its environment and its processes.
//
// Package undertest names the server. Limits that a test wants tighter are set
// in a copy of the server's own metadata.
package e2e

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// runTests lets more tests run side by side than there are processors: those that
// call t.Parallel wait more than they work.
func runTests(m *testing.M) {
	flag.Parse()
	if patience.Factor() == 1 {
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// building is what a small build by Nix may take on a machine that does much
// else: builds beside a server have a low priority.
const building = 10 * time.Minute

// environments are those of the server, by name.
func environments(t testing.TB) map[string]map[string]any {
	t.Helper()
	return undertest.Environments(t)
}

// tightened returns the variable that gives every environment other limits.
func tightened(t testing.TB, limits map[string]any) string {
	t.Helper()
	all := environments(t)
	for _, fields := range all {
		if limits["timeout_seconds"] != nil {
			fields["max_timeout_seconds"] = nil // the same
		}
		maps.Copy(fields, limits)
	}
	return "NIX_SANDBOX_METADATA=" + mcptest.Metadata(t, all)
}

// command is the server with only these variables, its home and temporary
// files in folders of the test.
func command(t testing.TB, variables ...string) *exec.Cmd {
	t.Helper()
	home := t.TempDir()
	undertest.ShareMachines(t, home)
	cmd := exec.Command(undertest.Server(t), "--stdio")
	cmd.Env = append([]string{"HOME=" + home, "TMPDIR=" + home, "NIX_SANDBOX_DIR=" + filepath.Join(home, "sandboxes")}, variables...)
	// A machine whose instructions are emulated says how long a start takes.
	if seconds := os.Getenv("NIX_SANDBOX_START_SECONDS"); seconds != "" {
		cmd.Env = append(cmd.Env, "NIX_SANDBOX_START_SECONDS="+seconds)
	}
	return cmd
}

// start starts the server and initializes.
func start(t testing.TB, variables ...string) *mcptest.Client {
	t.Helper()
	c := mcptest.Start(t, command(t, variables...))
	c.Initialize(mcptest.Newest)
	return c
}

// expectRefusal fails the test unless a server that is started so ends with
// status 1 and prints all of these.
func expectRefusal(t testing.TB, cmd *exec.Cmd, parts ...string) {
	t.Helper()
	out, _ := cmd.CombinedOutput()
	for _, part := range parts {
		if status := cmd.ProcessState.ExitCode(); status != 1 || !strings.Contains(string(out), part) {
			t.Errorf("status %d, want 1 and %q:\n%s", status, part, out)
		}
	}
}

// run is a call without a session.
func run(c *mcptest.Client, env, code string) mcptest.Answer {
	return c.Run(mcptest.Arguments{Code: code, Env: env})
}

// in is a call in a session.
func in(c *mcptest.Client, session, env, code string) mcptest.Answer {
	return c.Run(mcptest.Arguments{Code: code, Env: env, Session: session})
}

// seconds returns a number of seconds that only one program on this machine sleeps
// for, by which a test finds it. It does not end before the test.
func seconds() string { return fmt.Sprintf("999.%d%09d", os.Getpid(), rand.IntN(1e9)) }

// together waits until n programs sleep for that number of seconds at the same time,
// and ends them.
func together(t testing.TB, n int, seconds string) {
	t.Helper()
	var found []int
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("%d of %d run at the same time", len(found), n) }, func() bool {
		found = procfs.WithCommand("sleep\x00" + seconds)
		return len(found) == n
	})
	for _, pid := range found {
		must.Do(t, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// expect fails the test unless a call succeeded and was answered with want, as
// text alone.
func expect(t testing.TB, answer mcptest.Answer, want string) {
	t.Helper()
	if answer.IsError || answer.Text() != want || answer.Structured != nil {
		t.Errorf("answer %+v, want %q", answer, want)
	}
}

// expectError fails the test unless a call failed with an answer that holds all
// of these.
func expectError(t testing.TB, answer mcptest.Answer, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !answer.IsError || !strings.Contains(answer.Text(), part) {
			t.Errorf("answer %+v, want an error with %q", answer, part)
		}
	}
}

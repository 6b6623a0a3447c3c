package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// asInit returns the command as process 1 of a namespace, as a container has it.
func asInit(t *testing.T, cmd *exec.Cmd, wrap ...string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a PID namespace with its own /proc takes root")
	}
	args := append([]string{"--pid", "--fork", "--kill-child", "--mount-proc"}, wrap...)
	inner := exec.Command("unshare", append(append(args, cmd.Path), cmd.Args[1:]...)...)
	inner.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
	return inner
}

// zombies returns the processes below one that have ended and that nothing has waited for.
func zombies(pid int) (all []string) {
	for _, below := range procfs.Descendants(pid) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", below))
		if err != nil {
			continue
		}
		if at := strings.LastIndex(string(stat), ") "); strings.HasPrefix(string(stat[at+2:]), "Z") {
			all = append(all, string(stat[:at+1]))
		}
	}
	return all
}

// noZombies awaits that nothing is left of what has ended.
func noZombies(t *testing.T, pid int) {
	t.Helper()
	var left []string
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("zombies are left: %q", left) }, func() bool {
		left = zombies(pid)
		return len(left) == 0
	})
}

// As process 1 of a container the server leaves no zombies, whatever ends: calls, also those that
// run out of time, are cancelled or leave a daemon, and sessions. A signal ends the server as ever.
func TestInit_WaitsForWhatIsLeft(t *testing.T) {
	t.Parallel()
	c := mcptest.Start(t, asInit(t, command(t, "SESSION_IDLE_TIMEOUT=1")))
	c.Initialize(mcptest.Newest)
	code := map[string]string{"python": "print(1)", "bash": "echo 1; (setsid sleep 0.1 &)", "node": "console.log(1)"}
	for range 5 {
		for env, code := range code {
			expect(t, run(c, env, code), "1\n")
			// On a busy machine, the session of the call before has ended.
			if answer := in(c, "s-"+env, env, code); !strings.HasPrefix(answer.Text(), "1\n") {
				t.Errorf("%s: %+v", env, answer)
			}
		}
	}
	id := c.SendRun(mcptest.Arguments{Code: "sleep 900", Env: "bash"})
	c.Notify("notifications/cancelled", map[string]any{"requestId": id})
	c.Run(map[string]any{"code": "sleep 900", "env": "bash", "timeout": 1})
	// The sessions end, and their sandboxes with them.
	patience.Wait(t, patience.Long, func() string { return "the sessions live on:\n" + c.Log() }, func() bool {
		return strings.Count(c.Log(), "session ended") >= 3 || strings.Contains(in(c, "s-bash", "bash", "echo 1").Text(), "new session")
	})
	noZombies(t, c.PID())
	processOne := procfs.Descendants(c.PID())[0]
	must.Do(t, syscall.Kill(processOne, syscall.SIGTERM))
	patience.Until(t, "SIGTERM ends process 1 and all others", func() bool { return !procfs.Runs(processOne) })
}

// With a limit of processes there are as many calls as one likes.
func TestInit_KeepsTheTableOfProcesses(t *testing.T) {
	t.Parallel()
	const most = 300
	home := must.Get(os.MkdirTemp("", "nix-sandbox-mcp-test-"))(t) // t.TempDir is root's alone
	t.Cleanup(func() { os.RemoveAll(home) })
	must.Do(t, os.Chmod(home, 0o777))
	cmd := command(t, "SESSION_IDLE_TIMEOUT=1")
	for i, variable := range cmd.Env {
		if name, _, _ := strings.Cut(variable, "="); name == "HOME" || name == "TMPDIR" {
			cmd.Env[i] = name + "=" + home
		}
	}
	cmd.Env = append(cmd.Env, "NIX_SANDBOX_DIR="+filepath.Join(home, "none"))
	// Root has no such limit. No other process has this user.
	c := mcptest.Start(t, asInit(t, cmd, "setpriv", "--pdeathsig", "KILL", "--reuid=61234", "--regid=61234", "--clear-groups", "prlimit", fmt.Sprintf("--nproc=%d:%d", most, most)))
	c.Initialize(mcptest.Newest)
	for i := range most + 50 {
		if answer := run(c, "bash", "echo 1"); answer.Text() != "1\n" {
			t.Fatalf("call %d: %+v", i, answer)
		}
	}
}

// The wrapper starts the process that builds, however soon the child between the two ends.
func TestInit_StartsItsBuilder(t *testing.T) {
	t.Parallel()
	const starts = 1500
	builder := filepath.Join(t.TempDir(), "builder")
	must.Do(t, os.WriteFile(builder, []byte("#!/bin/sh\nwhile read -r line; do :; done\n"), 0o700))
	script := fmt.Sprintf(`. ../../nix/wrapper/start.sh; builder=%s
		for ((i = 0; i < %d; i++)); do start_builder; exec {alive}>&-; done; echo $i`, builder, starts)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience.Long)
	defer cancel()
	cmd := asInit(t, exec.Command(must.Get(exec.LookPath("bash"))(t), "-c", script))
	cmd = exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	out, err := cmd.CombinedOutput()
	if string(out) != fmt.Sprintln(starts) || err != nil {
		t.Fatalf("%d starts of a builder: %v, %s", starts, err, out)
	}
}

// Over HTTP, too, it leaves no zombies.
func TestInit_WaitsForWhatIsLeftOverHTTP(t *testing.T) {
	t.Parallel()
	s := startHTTPAs(t, func(cmd *exec.Cmd) *exec.Cmd { return asInit(t, cmd) }, []string{"alice"}, nil, nil)
	for range 5 {
		for _, env := range []string{"python", "bash", "node"} {
			if answer, err := s.client("alice", mcptest.Newest).Run(t.Context(), mcptest.Arguments{Env: env, Code: "1 || 1"}); err != nil {
				t.Errorf("%s: %v, %+v", env, err, answer)
			}
		}
	}
	noZombies(t, s.cmd.Process.Pid)
}

package cli

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// A user who may make no further user namespace is told so, and what an administrator does.
func TestNamespaces_AreUsedUp(t *testing.T) {
	t.Parallel()
	server := undertest.Server(t)
	limited := func(args ...string) (string, int) {
		const script = `echo 1 >/proc/sys/user/max_user_namespaces && exec unshare --user --map-user=1000 --map-group=1000 -- "$@"`
		cmd := exec.Command("unshare", append([]string{"--map-root-user", "--", "sh", "-c", script, "sh"}, args...)...)
		cmd.Env = command(t).Env
		out, _ := cmd.CombinedOutput() // the status says it
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, status := limited("true"); status != 0 {
		t.Skipf("no namespaces to limit: %s", out)
	}
	out, status := limited(server, "run", "bash", "-c", "echo ran")
	if status != 125 || !strings.Contains(out, "nix-sandbox-mcp: error: the sandbox did not start: ") || !strings.Contains(out, "sysctl -w user.max_user_namespaces=15000\n") {
		t.Errorf("run: status %d, %s", status, out)
	}
	out, status = limited(server, "doctor")
	if status != 1 || !strings.Contains(out, "sysctl -w user.max_user_namespaces=15000") || strings.Contains(out, "seccomp.json") || strings.Contains(out, "mkSandbox") {
		t.Errorf("doctor: status %d, %s", status, out)
	}
}

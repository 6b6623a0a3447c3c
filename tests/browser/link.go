package browser

import (
	"bufio"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Link starts the program's command page with an environment, and returns the link that it prints. It
// ends with the test.
func Link(t testing.TB, program string, env []string) string {
	t.Helper()
	cmd := exec.Command(program, "page")
	cmd.Env = env
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		must.Do(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil {
			t.Errorf("the page ended with %v", err)
		}
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	link, isLink := strings.CutPrefix(strings.TrimSpace(line), "Open ")
	if !isLink {
		t.Fatalf("the page printed %q", line)
	}
	return link
}

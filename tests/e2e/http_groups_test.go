package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
)

// What somebody's sandboxes use together is bounded where control groups can be had,
// although each of them keeps its own limit: the kernel ends one of them, the answer says
// why, and nobody else's ends. Somebody of a class with more memory keeps all of them.
// The first sandbox is one that was started before anybody asked for it.
func TestHTTP_PrincipalsHaveGroupsWithDelegate(t *testing.T) {
	const (
		held = 48 // MB, which each session writes to its files
		code = "head -c %dM /dev/zero > /workspace/held; echo held"
	)
	quota := func(used int) map[string]any {
		return map[string]any{"calls": 8, "sessions": 8, "streams": 8, "memory_mb": 1 << 20, "memory_used_mb": used}
	}
	s := startHTTP(t, []string{"alice", "bob", "carol class=large"}, map[string]any{
		"lame_duck_seconds": 0,
		"quotas":            map[string]any{"default": quota(2 * held), "large": quota(8 * held)},
	}, map[string]any{"memory_mb": 4 * held, "prewarm": 1})
	if !strings.Contains(s.log.String(), `"msg":"limits","by":"cgroup"`) {
		t.Skip("no control group can be made here")
	}
	hold := func(c *httpclient.Client, session string) mcptest.Answer {
		return inHTTP(t, c, session, "bash", fmt.Sprintf(code, held))
	}
	bob := s.client("bob", mcptest.Stateless)
	expect(t, hold(bob, "one"), "held\n")

	// Whoever has most is ended: the session that writes, or one that has written.
	alice := s.client("alice", mcptest.Stateless)
	const sessions = 3
	ended := 0
	for i := range sessions {
		answer := hold(alice, fmt.Sprint(i))
		switch {
		case answer.Text() == "held\n":
		case strings.HasPrefix(answer.Text(), "[stopped: your sandboxes together used more memory than you may have; ") && answer.Fact("limit") == "memory_used_mb":
			ended++
		default:
			t.Errorf("session %d: %q with facts %v", i, answer.Text(), answer.Meta)
		}
	}
	for i := range sessions {
		answer := inHTTP(t, alice, fmt.Sprint(i), "bash", "ls /workspace")
		if !strings.Contains(answer.Text(), "held") {
			ended++
		}
	}
	if ended == 0 {
		t.Errorf("alice's sessions hold %d MB, and may have %d together", sessions*held, 2*held)
	}
	carol := s.client("carol", mcptest.Stateless)
	for i := range sessions {
		expect(t, hold(carol, fmt.Sprint(i)), "held\n")
	}
	for i := range sessions {
		expect(t, inHTTP(t, carol, fmt.Sprint(i), "bash", "ls /workspace/held"), "/workspace/held\n")
	}
	expect(t, inHTTP(t, bob, "one", "bash", "ls /workspace/held"), "/workspace/held\n")
	var above []string
	for _, group := range groups(t, s.cmd.Process.Pid) {
		if strings.HasPrefix(filepath.Base(group), "principal-") {
			above = append(above, group)
		}
	}
	if len(above) != 3 {
		t.Errorf("the groups of three principals are %q", above)
	}
	s.end()
	for _, group := range above {
		if _, err := os.Stat(group); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the server's end: %s, %v", group, err)
		}
	}
}

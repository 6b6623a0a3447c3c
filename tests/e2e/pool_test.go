package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// full waits until a sandbox of each environment is ready, with its
// interpreter, and returns all their processes. What a call used up is gone
// by then.
func full(t testing.TB, c *mcptest.Client) []int {
	t.Helper()
	want := 0
	for _, fields := range environments(t) {
		want += 3 // jail, its first process, agent; and an interpreter
		if fields["interpreter_type"] != "command" {
			want++
		}
	}
	var found []int
	steady := 0
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("%d processes, want about %d", len(found), want) }, func() bool {
		now := procfs.Descendants(c.PID())
		if len(now) == len(found) && len(now) >= want-len(environments(t)) {
			steady++
		} else {
			steady = 0
		}
		found = now
		return steady == 10
	})
	return found
}

// No sandbox starts before the client has the answer to initialize.
func TestPool_StartsNothingBeforeInitialize(t *testing.T) {
	c := mcptest.Start(t, command(t))
	c.Await(c.Send("ping", nil))
	time.Sleep(200 * time.Millisecond)
	if started := procfs.Descendants(c.PID()); len(started) > 0 {
		t.Errorf("processes %v before initialize", started)
	}
	c.Initialize(mcptest.Newest)
	full(t, c)
}

// unpooled is the variable that leaves no sandbox waiting: every process is
// that of a call or a session.
func unpooled(t testing.TB) string {
	return tightened(t, map[string]any{"prewarm": 0})
}

// Without prewarm nothing waits.
func TestPool_CanBeSwitchedOff(t *testing.T) {
	c := start(t, unpooled(t))
	expect(t, run(c, "bash", "echo hello"), "hello\n")
	patience.Wait(t, patience.Long, func() string { return fmt.Sprint(procfs.Descendants(c.PID())) }, func() bool {
		return len(procfs.Descendants(c.PID())) == 0
	})
}

// A call finds no files and no processes of an earlier call, although its
// sandbox was started while the earlier call was running.
func TestPool_LeavesNothingOfACall(t *testing.T) {
	c := start(t)
	const leave = "for d in /workspace /tmp /dev/shm; do echo mine >$d/mine; done; sleep 999 & disown"
	look := map[string]string{
		"bash":   leave + "; ls -A /workspace /tmp /dev/shm | grep -c mine; set -- /proc/[0-9]*; echo $#",
		"python": "import os, subprocess\nfor d in ('/workspace', '/tmp', '/dev/shm'): print('mine' in os.listdir(d), end=' '); open(d + '/mine', 'w').close()\nprint(sum(p.isdigit() for p in os.listdir('/proc')))\nsubprocess.Popen(['sleep', '999'], start_new_session=True)",
		"node":   "const fs = require('fs'); for (const d of ['/workspace', '/tmp', '/dev/shm']) { console.log(fs.existsSync(d + '/mine')); fs.writeFileSync(d + '/mine', '') }; console.log(fs.readdirSync('/proc').filter((p) => +p > 0).length)",
	}
	for env, code := range look {
		var first string
		for turn := range 3 {
			full(t, c)
			answer := run(c, env, code)
			text := answer.Text()
			if turn == 0 {
				first = text
			}
			if text != first || strings.Contains(text, "true") || strings.Contains(text, "True") {
				t.Errorf("%s, call %d: %q, the first call: %q", env, turn, text, first)
			}
		}
	}
}

// Two sandboxes that waited draw other numbers.
func TestPool_SharesNoRandomNumbers(t *testing.T) {
	c := start(t, tightened(t, map[string]any{"prewarm": 3}))
	for env, code := range map[string]string{
		"bash":   "echo $RANDOM$RANDOM$RANDOM $SRANDOM",
		"python": "import random; print(random.random(), hash('a'))",
		"node":   "console.log(Math.random(), crypto.randomUUID())",
	} {
		full(t, c)
		seen := map[string]bool{}
		for range 3 {
			for _, number := range strings.Fields(run(c, env, code).Text()) {
				if seen[number] {
					t.Errorf("%s drew %s twice", env, number)
				}
				seen[number] = true
			}
		}
		if len(seen) != 6 {
			t.Errorf("%s drew %v", env, seen)
		}
	}
}

// Sandboxes that were killed while they waited are replaced before a call
// gets one.
func TestPool_ReplacesKilledSandboxes(t *testing.T) {
	c := start(t)
	alive := full(t, c)
	for _, pid := range alive {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	patience.Gone(t, alive...)
	expect(t, run(c, "bash", "echo alive"), "alive\n")
	full(t, c)
}

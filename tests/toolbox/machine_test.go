package toolbox

import (
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// In a virtual machine code reaches the same tools in the same way, and no more of them: the calls
// are made in one session, because a machine without KVM takes half a minute to start.
func TestMachine(t *testing.T) {
	w := startOf(t, named(t, "NIX_SANDBOX_TEST_TOOLS_MACHINE"))
	run := func(code string) string {
		answer := w.Run(map[string]any{"env": "machine", "session": "s", "timeout": 120, "code": code})
		return answer.Text()
	}
	for _, one := range surfaces["python"] {
		if got := run(one.code); !strings.Contains(got, one.want) {
			t.Errorf("%s\nanswers %s\nwant    %s", one.code, got, one.want)
		}
	}
	n := 0
	for _, one := range attempts {
		if one.env != "python" {
			continue
		}
		n++
		if got := run(one.code); !strings.Contains(got, one.want) {
			t.Errorf("%s: answers %.400s\nwant %s", one.name, got, one.want)
		}
	}
	t.Logf("%d attempts with their controls", n)
	if got := run("import threading, time\nr = tools.map(tools.ten.add, [{'a': n, 'b': 1} for n in range(200)], at_once=8)\nprint(r == [str(n + 1) for n in range(200)])"); got != "True\n" {
		t.Errorf("200 calls: %s", got)
	}
	// What outlives its call reaches nothing, and a time limit ends the calls of tools.
	run("import subprocess\nsubprocess.Popen('for i in $(seq 1000); do tool ten add a:=40 b:=2 >>/tmp/out 2>&1; sleep 0.1; done', shell=True, start_new_session=True)")
	patience.Until(t, "a process that outlives its call is told so", func() bool {
		time.Sleep(time.Second)
		return strings.Contains(run("print(open('/tmp/out').read()[-1000:])"), "outlived its call")
	})
	if got := w.Run(map[string]any{"env": "machine", "session": "s", "timeout": 3, "code": "tools.everything.trigger_long_running_operation(duration=600, steps=2)"}).Text(); !strings.Contains(got, "timed out after 3 s") {
		t.Errorf("at its time limit: %s", got)
	}
	outcomes := map[string]int{}
	for _, r := range w.records(t) {
		if r.Tool != nil {
			outcomes[r.Outcome]++
		}
	}
	if outcomes["cancelled"] < 1 || outcomes["denied"] < 5 || outcomes["ok"] < 200 {
		t.Errorf("the record has %v", outcomes)
	}
	if got := run("print(tools.ten.add(a=40, b=2))"); got != "42\n" {
		t.Errorf("the session goes on with %s", got)
	}
}

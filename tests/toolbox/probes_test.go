package toolbox

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// discovers matches code that asks what there is in place of calling it.
var discovers = regexp.MustCompile(`help|search\(|/tools|--search`)

// Models call a tool right at once: of testdata/probes.json, how many calls of run a task takes
// until its tool has answered, and how many tasks take a look around first.
func TestProbes(t *testing.T) {
	var file struct {
		Probes []struct {
			Tool, Task, Want    string
			Python, Node, Shell []string
		}
	}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile("testdata/probes.json"))(t), &file))
	w := startOf(t, named(t, "NIX_SANDBOX_TEST_TOOLS_PROBES"))
	tasks, turns, looks := 0, 0, 0
	for _, probe := range file.Probes {
		for env, attempts := range map[string][]string{"python": probe.Python, "node": probe.Node, "shell": probe.Shell} {
			tasks++
			done := false
			for _, code := range attempts {
				turns++
				if discovers.MatchString(code) {
					looks++
				}
				answer := w.run(env, code)
				if done = !answer.IsError && strings.Contains(answer.Text(), probe.Want); done {
					break
				}
				t.Logf("%s in %s: %s\nanswers %.600s", probe.Tool, env, code, answer.Text())
			}
			if !done {
				turns++
				t.Errorf("%s in %s: %s: no attempt is right", probe.Tool, env, probe.Task)
			}
		}
	}
	mean, share := float64(turns)/float64(tasks), 1-float64(looks)/float64(tasks)
	t.Logf("%d tasks take %.2f calls of run each, and %.0f %% no look around", tasks, mean, 100*share)
	if tasks != 60 || mean > 1.3 || share < 0.7 {
		t.Error("models need more than that is to be")
	}
}

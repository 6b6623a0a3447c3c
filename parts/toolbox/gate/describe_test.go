package gate

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// described returns what the model reads of environments with three servers of 40 tools.
func described(t *testing.T, types ...string) string {
	t.Helper()
	c := &Catalog{Servers: map[string]*Server{}, Environments: map[string]map[string][]string{}}
	tools := map[string][]string{}
	for _, name := range []string{"github", "files", "calendar"} {
		c.Servers[name] = &Server{Tools: map[string]*Tool{}}
		for i := range map[string]int{"github": 20, "files": 12, "calendar": 8}[name] {
			tool := fmt.Sprintf("%s-of-thing-%02d", []string{"get", "list", "create"}[i%3], i)
			c.Servers[name].Tools[tool] = &Tool{Input: Schema{RawMessage: []byte(`{"properties":{"owner":{},"repository":{},"state":{}},"required":["owner","repository"]}`)}}
			tools[name] = append(tools[name], tool)
		}
	}
	set := &registry.Set{Environments: map[string]registry.Environment{}}
	for i, kind := range types {
		exec := fmt.Sprintf("/%d/bin/session-run", i)
		set.Environments[kind] = registry.Environment{Name: kind, InterpreterType: kind, SessionExec: exec}
		c.Environments[exec] = tools
		if i > 0 { // not the same ones
			c.Environments[exec] = map[string][]string{"github": tools["github"][i:], "files": tools["files"], "calendar": tools["calendar"]}
		}
	}
	set.Environments["plain"] = registry.Environment{Name: "plain", SessionExec: "/plain/bin/session-run"}
	return New(c, slog.New(slog.DiscardHandler)).Describe(registry.New(set).Now())
}

func TestDescribe_IsShort(t *testing.T) {
	if text := described(t); text != "" {
		t.Errorf("without tools: %q", text)
	}
	one := described(t, "python")
	if len(one) > 320 || !strings.Contains(one, `tools.calendar.get_of_thing_00(owner=…)`) || !strings.Contains(one, "\n- python: calendar: get_of_thing_00, list_of_thing_01, ") {
		t.Errorf("%d bytes: %s", len(one), one)
	}
	three := described(t, "python", "node", "bash")
	if len(three) > 700 || strings.Contains(three, "plain") {
		t.Errorf("%d bytes: %s", len(three), three)
	}
	t.Logf("%d bytes for one environment, %d for three:\n%s\n%s", len(one), len(three), one, three)
}

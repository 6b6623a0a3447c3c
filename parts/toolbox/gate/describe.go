package gate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// What the model reads about tools has at most describeFirst bytes for one environment and
// describeMore for each further one, and describeMost in all. What is left out is counted, and
// errors of code name it.
const (
	describeFirst = 320
	describeMore  = 190
	describeMost  = 700
)

// forms say how code of an interpreter's type calls a tool.
var forms = map[string]string{
	"python": `tools.%s.%s(%[3]s=…)`,
	"node":   `await tools.%s.%s({%[3]s: …})`,
	"bash":   `tool %s %s %[3]s=…`,
}

// Describe says what code of the environments can call, or an empty text.
func (g *Gate) Describe(snapshot *registry.Snapshot) string {
	type group struct {
		tools map[string][]string
		names []string
	}
	var groups []*group
	var calls []string
	count := 0
	ready := snapshot.Ready()
	for _, name := range snapshot.Names() {
		env, is := ready[name]
		if !is {
			continue
		}
		tools := g.catalog.of(env.SessionExec)
		if tools == nil {
			continue
		}
		count++
		if form := g.example(env, tools); !slices.Contains(calls, form) {
			calls = append(calls, form)
		}
		same := func(one *group) bool { return maps.EqualFunc(one.tools, tools, slices.Equal) }
		if at := slices.IndexFunc(groups, same); at >= 0 {
			groups[at].names = append(groups[at].names, name)
		} else {
			groups = append(groups, &group{tools, []string{name}})
		}
	}
	if len(groups) == 0 {
		return ""
	}
	text := "Code can call tools, described in /tools: " + strings.Join(calls, "; ")
	left := min(describeFirst+describeMore*(count-1), describeMost) - len(text)
	for i, one := range groups {
		line := "\n- " + strings.Join(one.names, ", ") + ": "
		line += g.list(one.tools, left/(len(groups)-i)-len(line))
		left -= len(line)
		text += line
	}
	return text
}

// example is a call of the first tool of an environment with an argument, in its language.
func (g *Gate) example(env registry.Environment, tools map[string][]string) string {
	form, known := forms[env.InterpreterType]
	if !known {
		form = forms["bash"]
	}
	call := ""
	for _, server := range slices.Sorted(maps.Keys(tools)) {
		for _, tool := range tools[server] {
			names := g.catalog.Servers[server].Tools[tool].arguments()
			if len(names) > 0 {
				return fmt.Sprintf(form, server, plain(tool), names[0])
			}
			call = cmp.Or(call, fmt.Sprintf(form, server, plain(tool), "name"))
		}
	}
	return call
}

// list lists tools within a number of bytes: as many names as there is room for, each server's in
// turn, and then the required arguments of as many.
func (g *Gate) list(tools map[string][]string, most int) string {
	servers := slices.Sorted(maps.Keys(tools))
	most -= len("; : , +100")*len(servers) + len(strings.Join(servers, ""))
	shown := map[string][]string{}
	for _, full := range []bool{false, true} {
		for i, more := 0, true; more; i++ {
			more = false
			for _, server := range servers {
				// Names are left out at the end of a server's, so that those shown are the first.
				if i >= len(tools[server]) || full && i >= len(shown[server]) || !full && i > len(shown[server]) {
					continue
				}
				more = true
				tool := tools[server][i]
				text, cost := plain(tool), len(plain(tool))+len(", ")
				if full {
					arguments := "(" + strings.Join(g.catalog.Servers[server].Tools[tool].arguments(), ", ") + ")"
					text, cost = text+arguments, len(arguments)
				}
				if cost > most {
					continue
				}
				most -= cost
				if full {
					shown[server][i] = text
				} else {
					shown[server] = append(shown[server], text)
				}
			}
		}
	}
	for i, server := range servers {
		if left := len(tools[server]) - len(shown[server]); left > 0 {
			shown[server] = append(shown[server], fmt.Sprintf("+%d", left))
		}
		servers[i] = server + ": " + strings.Join(shown[server], ", ")
	}
	return strings.Join(servers, "; ")
}

// arguments are the names of a tool's required arguments.
func (t *Tool) arguments() []string {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}
	_ = json.Unmarshal(t.Input.RawMessage, &schema) // a schema of another form has no properties
	return slices.DeleteFunc(schema.Required, func(name string) bool {
		_, found := schema.Properties[name]
		return !found || !plainName.MatchString(name)
	})
}

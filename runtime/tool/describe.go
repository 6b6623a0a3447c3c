package tool

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// Bounds of the environments' descriptions, in bytes: of one, of one among many, and of all
// together. Some clients cut a tool's description at 2 KB, and a few words on each environment are
// worth more than a sentence on the first.
const (
	describeBytes    = 160
	describeLeast    = 24
	describeAllBytes = 1200
)

// listing is the model's view of the environments at one moment.
type listing struct {
	*registry.Snapshot
	*Options
}

// list returns the current listing.
func (t *Tool) list() listing { return listing{t.Environments.Now(), &t.Options} }

// definition is the tool as tools/list shows it. Every byte of it costs the
// model's context in every conversation.
func (l listing) definition() mcp.Tool {
	definition := mcp.NewToolWithRawSchema(Name, l.description(), l.schema())
	// All four, for the defaults are a destructive tool in an open world.
	no, network := false, l.hasNetwork()
	definition.Annotations = mcp.ToolAnnotation{
		ReadOnlyHint:    &no,
		DestructiveHint: &no,
		IdempotentHint:  &no,
		OpenWorldHint:   &network,
	}
	return definition
}

func (l listing) schema() json.RawMessage {
	type property struct {
		Type    string   `json:"type"`
		Enum    []string `json:"enum,omitempty"`
		Pattern string   `json:"pattern,omitempty"`
		Maximum float64  `json:"maximum,omitempty"`
		Default float64  `json:"default,omitempty"`
		About   string   `json:"description,omitempty"`
	}
	type properties struct {
		Code    property  `json:"code"`
		Env     property  `json:"env"`
		Session *property `json:"session,omitempty"`
		From    *property `json:"from,omitempty"`
		Timeout *property `json:"timeout,omitempty"`
	}
	schema := struct {
		Type       string     `json:"type"`
		Properties properties `json:"properties"`
		Required   []string   `json:"required"`
		Additional bool       `json:"additionalProperties"`
	}{
		Type: "object",
		Properties: properties{
			Code: property{Type: "string"},
			Env:  property{Type: "string", Enum: l.offered()},
		},
		Required: []string{"code", "env"},
	}
	if l.Packages != nil && l.those(func(env registry.Environment) bool { return env.OnDemand != nil }) != nil {
		// A list of names would say that no name with packages is one.
		schema.Properties.Env = property{Type: "string", Pattern: "^(" + strings.Join(l.offered(), "|") + `)(\+[\w-]+)*$`}
	}
	if len(l.withSessions()) > 0 {
		schema.Properties.Session = &property{Type: "string", Pattern: ValidSession.String()}
	}
	if l.hasBranches() {
		schema.Properties.From = &property{Type: "string", Pattern: ValidSession.String(), About: "the new session begins as a copy of this one"}
	}
	if longest := l.maxTimeout(); longest > 0 {
		schema.Properties.Timeout = &property{Type: "number", Maximum: longest.Seconds(), Default: l.usualTimeout().Seconds(), About: "seconds"}
	}
	text, err := json.Marshal(schema)
	if err != nil {
		panic(err) // strings and booleans only
	}
	return text
}

// description describes the tool and lists the environments.
func (l listing) description() string {
	var text strings.Builder
	text.WriteString("Run code in a sandbox: ")
	switch {
	case l.hasNetwork():
		text.WriteString("no files of the host, no network and no installing except from the hosts that an env lists. ")
	case l.adding() != "":
		text.WriteString("no network, no files of the host, no installers. ")
	default:
		text.WriteString("no network, no files of the host, nothing can be installed. ")
	}
	text.WriteString("code is the program in env's language, without a shell or ``` around it; print what is to be seen. It runs in /workspace")
	if l.Project.Mount != "" {
		text.WriteString("; the project is at " + l.Project.Mount)
		if l.Project.Overlaid {
			text.WriteString(", where changes last as long as the call")
			if len(l.withSessions()) > 0 {
				text.WriteString(" or session")
			}
		} else {
			text.WriteString(", read-only")
		}
	}
	if l.Project.Inbox != "" {
		text.WriteString("; files given to it are in " + l.Project.Inbox + ", read-only")
	}
	text.WriteString(". Each call starts fresh")
	if len(l.withSessions()) > 0 {
		text.WriteString(" unless a session (any name) is given: calls with the same session ")
		stay := ""
		if l.KeptFiles {
			stay = ", which stay when it ends"
		}
		if l.SharedFiles {
			text.WriteString("share files" + stay + ", and variables per env")
		} else {
			text.WriteString("and env share variables and files" + stay)
		}
	}
	text.WriteString(". Images saved in /workspace/outputs are shown.\nenv is one of\n")
	text.WriteString(strings.Join(l.lines(), "\n"))
	if adding := l.adding(); adding != "" {
		text.WriteString("\n" + adding)
	}
	if l.More != nil {
		if more := l.More(l.Snapshot); more != "" {
			text.WriteString("\n" + more)
		}
	}
	return text.String()
}

// adding says which environments calls may add packages to, or is "".
func (l listing) adding() string {
	if l.Packages == nil {
		return ""
	}
	return l.Packages.Describe(l.Snapshot)
}

// instructions tell the model when to use the tool.
func (l listing) instructions() string {
	bound := "can do no harm"
	if l.hasNetwork() {
		bound = "reaches nothing but the hosts that its env lists"
	}
	text := "Use run to compute, test and analyse: code in it " + bound + ". Choose env by the code's language."
	if l.Project.Mount != "" {
		text += " The user's project is at " + l.Project.Mount
		if l.Project.Overlaid {
			text += "; changes there reach the user only as a session's patch."
		} else {
			text += "; copy what is to be changed to /workspace."
		}
	}
	if len(l.withSessions()) > 0 {
		text += " For work in steps use one session per task"
		if !l.SharedFiles {
			text += " and env"
		}
		text += "."
	}
	return text
}

func (l listing) lines() []string {
	var lines []string
	limit := min(describeBytes, max(describeLeast, describeAllBytes/max(1, len(l.Names()))))
	for _, name := range l.Names() {
		env := l.Ready()[name]
		about, network := limit, ""
		if env.Network != nil {
			// Half of the line if it must be short.
			network = "; network: " + env.Network.Hosts(min(hostsBytes, limit/2))
			about = max(describeLeast, limit-len(network))
		}
		if about := oneLine(env.Description, about); about != "" || network != "" {
			line := "- " + name + ": " + strings.TrimPrefix(about+network, "; ")
			lines = append(lines, line)
		} else {
			lines = append(lines, "- "+name)
		}
	}
	for _, name := range l.building() {
		lines = append(lines, "- "+name+": being built; a call waits for it")
	}
	return lines
}

// building returns the names of the environments that are being built.
func (l listing) building() (names []string) {
	for _, build := range l.AllPending() {
		if !build.Failed {
			names = append(names, build.Name)
		}
	}
	return names
}

// offered returns the names of the environments that calls may name: a call waits for one that is
// being built.
func (l listing) offered() []string { return slices.Concat(l.Names(), l.building()) }

// oneLine makes one line of at most limit bytes of a description.
func oneLine(text string, limit int) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "")), " ")
	if len(text) <= limit {
		return text
	}
	return bounded.Head(text, limit-len("...")) + "..."
}

// those returns the usable environments that match, in the order of their names.
func (l listing) those(match func(registry.Environment) bool) (found []registry.Environment) {
	for _, name := range l.Names() {
		if env := l.Ready()[name]; match(env) {
			found = append(found, env)
		}
	}
	return found
}

// hasNetwork reports whether an environment reaches hosts.
func (l listing) hasNetwork() bool {
	return l.those(func(env registry.Environment) bool { return env.Network != nil }) != nil
}

// hasBranches reports whether a session of some environment may begin as a copy of
// another one.
func (l listing) hasBranches() bool {
	return l.Branches && l.those(func(env registry.Environment) bool { return env.Branch && env.Sessions() }) != nil
}

// withSessions names the environments that keep state.
func (l listing) withSessions() []string { return namesOf(l.those(registry.Environment.Sessions)) }

func namesOf(environments []registry.Environment) (names []string) {
	for _, env := range environments {
		names = append(names, env.Name)
	}
	return names
}

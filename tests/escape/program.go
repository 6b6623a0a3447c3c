package escape

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

//go:embed prelude/prelude.py prelude/prelude.sh prelude/prelude.js prelude/world.py
var preludes embed.FS

// program returns the whole text that an interpreter is given: variables,
// the prelude, the attempt.
func (a *attempt) program(vars map[string]any) (string, error) {
	prelude, err := preludes.ReadFile("prelude/prelude." + string(a.language))
	if err != nil {
		return "", err
	}
	vars = maps.Clone(vars)
	vars["NAME"], vars["NEEDS"] = a.name, strings.Join(a.needs, " ")
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		value, err := json.Marshal(vars[name])
		if err != nil {
			return "", err
		}
		switch a.language {
		case bash:
			quoted := strings.ReplaceAll(fmt.Sprint(vars[name]), "'", `'\''`)
			fmt.Fprintf(&text, "%s='%s'\n", name, quoted)
		case node:
			fmt.Fprintf(&text, "var %s = %s;\n", name, value)
		default:
			fmt.Fprintf(&text, "%s = %s\n", name, value)
		}
	}
	text.Write(prelude)
	if a.language == python && slices.Contains(a.baits, "world") {
		prelude, err := preludes.ReadFile("prelude/world.py")
		if err != nil {
			return "", err
		}
		text.Write(prelude)
	}
	switch a.language {
	case bash:
		// What runs after the attempt may try commands that are not there.
		fmt.Fprintf(&text, "%s\nunset -f command_not_found_handle\nnote tried\n", a.code)
	case node:
		fmt.Fprintf(&text, "attempt(async () => {\n%s});\n", a.code)
	default:
		source, err := json.Marshal(a.code) // a string literal of Python too: attempts are ASCII
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "attempt(%s)\n", source)
	}
	return text.String(), nil
}

// argument is the option with which the language's interpreter takes code.
func (l language) argument() string {
	if l == node {
		return "-e"
	}
	return "-c"
}

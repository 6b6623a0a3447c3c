package clients

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
)

// Values of --project that name no folder. A folder of that name is ./here.
const (
	here      = "here"
	noProject = "none"
)

// variables are the flags for the variables of a server that a client starts.
type variables struct {
	overlay, write, readonly bool
	outputs, inbox           string
	others                   []string
}

func (v *variables) addTo(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&v.overlay, "overlay", false, "let code change a copy of the project: changes shows and applies what it changed")
	cmd.Flags().BoolVar(&v.write, "write", false, "let code change the project itself")
	cmd.Flags().BoolVar(&v.readonly, "readonly", false, "let code only read the project, as without this")
	cmd.Flags().StringVar(&v.outputs, "outputs", "", "copy files from /workspace/outputs to the folder `DIR`, which --install makes")
	cmd.Flags().StringVar(&v.inbox, "inbox", "", "show the folder `DIR` at /inbox, to read")
	cmd.Flags().StringArrayVar(&v.others, "env", nil, "set another variable of the server, `NAME=VALUE`")
	for _, name := range []string{"outputs", "inbox"} {
		if err := cmd.MarkFlagDirname(name); err != nil {
			panic(err) // the lines above have added it
		}
	}
}

// validVariable matches what --env takes.
var validVariable = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*=[^\x00]*$`)

// of returns the folder of --project, or "" if that names none, and the variables that a server is
// started with, each as NAME=VALUE. If they are installed, it makes the folder of outputs, without which
// the server does not start.
func (v *variables) of(project string, install bool) (folder string, set []string, err error) {
	add := func(name, value string) { set = append(set, name+"="+value) }
	switch project {
	case "", noProject:
	case here:
		add("PROJECT_DIR", ".")
	default:
		if folder, err = cli.ProjectFolder(project); err != nil {
			return "", nil, err
		}
		add("PROJECT_DIR", folder)
	}
	var modes []string
	for _, mode := range []struct {
		name string
		is   bool
	}{{"overlay", v.overlay}, {"readonly", v.readonly}, {"write", v.write}} {
		if mode.is {
			modes = append(modes, mode.name)
		}
	}
	switch {
	case len(modes) > 1:
		return "", nil, command.Misuse("both --"+modes[0]+" and --"+modes[1]+" were given", "keep one of them")
	case len(modes) == 1 && len(set) == 0:
		return "", nil, command.Misuse("--"+modes[0]+" is for a project", "add --project DIR, or --project here")
	case len(modes) == 1:
		add("PROJECT_MODE", modes[0])
	}
	if v.inbox != "" {
		inbox, err := config.Folder(v.inbox)
		if err != nil {
			return "", nil, command.Misuse(fmt.Sprintf("--inbox is %v", err), "name an existing folder")
		}
		add("NIX_SANDBOX_INBOX", inbox)
	}
	if v.outputs != "" {
		outputs, err := filepath.Abs(v.outputs)
		if err == nil && install {
			err = os.MkdirAll(outputs, 0o755)
		}
		if err != nil {
			return "", nil, command.Misuse(fmt.Sprintf("--outputs is %q: %v", v.outputs, err), "name a folder that exists, or can be made")
		}
		add("NIX_SANDBOX_OUTPUTS", outputs)
	}
	for _, one := range v.others {
		if !validVariable.MatchString(one) {
			return "", nil, command.Misuse(fmt.Sprintf("--env is %q", one), "use NAME=VALUE, with letters, digits and _ in the name")
		}
		name, value, _ := strings.Cut(one, "=")
		set = slices.DeleteFunc(set, func(has string) bool { return strings.HasPrefix(has, name+"=") })
		add(name, value)
	}
	return folder, set, nil
}

// table returns variables as a table in the format of a client's file: a table of TOML in one line, or
// an object of JSON, which is YAML too.
func table(language string, set []string) string {
	var members []string
	for _, one := range set {
		name, value, _ := strings.Cut(one, "=")
		var quoted strings.Builder
		_ = format.JSON(&quoted, value) // to memory
		if value = strings.TrimSpace(quoted.String()); language == "toml" {
			members = append(members, name+" = "+value)
		} else {
			members = append(members, `"`+name+`": `+value)
		}
	}
	if language == "toml" {
		return "{ " + strings.Join(members, ", ") + " }"
	}
	return "{" + strings.Join(members, ", ") + "}"
}

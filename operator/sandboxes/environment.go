package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// chosen is an environment that the user named, with the folders and variables of its sandbox.
type chosen struct {
	registry.Environment
	settings  config.Config
	host      sandbox.HostFolders
	inherited map[string]string
}

// choose finds the environment that the server would serve under a name. If project, the value
// of --project, is not empty, it replaces the server's project.
func choose(log io.Writer, name, project string) (chosen, error) {
	if project != "" {
		dir, err := cli.ProjectFolder(project)
		if err != nil {
			return chosen{}, err
		}
		if err := os.Setenv("PROJECT_DIR", dir); err != nil {
			return chosen{}, fmt.Errorf("set PROJECT_DIR: %w", err)
		}
	}
	if wrong := config.TooFewFiles(); wrong != nil {
		return chosen{}, command.End(command.NoSandbox, wrong.Problem, wrong.Hint)
	}
	base, _, adds := strings.Cut(name, "+")
	settings, set, err := Survey(log, base)
	if err != nil {
		return chosen{}, err
	}
	env, ok := set.Environments[name]
	switch {
	case !ok && adds:
		if env, err = withPackages(settings, set, name); err != nil {
			return chosen{}, err
		}
	case !ok:
		return chosen{}, unusable(name, registry.New(set).Now())
	}
	if dir := os.Getenv("PROJECT_DIR"); dir != "" && project == "" && settings.ProjectDir != "" {
		fmt.Fprintf(log, "%s: the code sees %s at %s, because PROJECT_DIR names it\n", cli.Program, settings.ProjectDir, settings.ProjectMount)
	}
	return chosen{Environment: env, settings: settings, inherited: config.Inherited(slices.Concat(set.Project.Inherit, env.Inherit)...), host: settings.HostFolders()}, nil
}

// unusable returns an error with the reason why an environment cannot be used.
func unusable(name string, now *registry.Snapshot) error {
	entry, known := now.Pending(name)
	if !known {
		hint := "see " + cli.Program + " list"
		if len(now.Names()) > 0 {
			hint = cmp.Or(cli.Meant("", name, now.Names(), hint), "use one of "+strings.Join(now.Names(), ", "))
		}
		return command.End(command.NoSandbox, fmt.Sprintf("there is no environment %q", name), hint)
	}
	return command.End(command.NoSandbox, fmt.Sprintf("environment %q cannot be used: %s", name, cmp.Or(entry.Reason, "it could not be loaded")),
		"correct it and build it again")
}

// groups returns what makes the control group of a sandbox; nil if there are none, so that the agent's limit keeper
// alone enforces the limits. A user's program stays in the group of its terminal.
func (c chosen) groups() (*cgroup.Tree, error) {
	tree, err := cgroup.Find(context.Background(), cgroup.System)
	if errors.As(err, new(*cgroup.Unavailable)) {
		return nil, nil
	}
	return tree, err
}

// completeEnvironment completes the first argument with the environments that are ready, and
// leaves other arguments to the directive.
func completeEnvironment(others cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, others
		}
		_, set, err := config.Survey()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, name := range set.Names() {
			names = append(names, cobra.CompletionWithDesc(name, format.Plain(set.Environments[name].Description)))
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

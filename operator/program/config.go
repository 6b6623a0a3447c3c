package program

import (
	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
)

// addEnvCommand is here for the help and the completions. The wrapper handles it, because only
// Nix can read and build a configuration.
func addEnvCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "add-env NAME PRESET [PACKAGE...]",
		Short: "Add an environment to your configuration, and build it",
		Long: `Add an environment to your configuration, and build it.

The configuration is nix-sandbox-mcp/config.toml in $XDG_CONFIG_HOME, or in ~/.config. It
adds to the default server: edit it for limits, networks and everything else. Servers
that run take what changes in its environments in some seconds, and its other tables
when they start again. If the environment cannot be built, nothing is written.`,
		Example: "  " + cli.Program + " add-env stats python seaborn statsmodels",
		RunE: func(*cobra.Command, []string) error {
			return withoutWrapper("asks Nix")
		},
	}
}

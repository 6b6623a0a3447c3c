package main

import (
	"github.com/spf13/cobra"
)

// configCommand is here for the help and the completions. The wrapper handles it, because only
// Nix can read a configuration file.
func configCommand() *cobra.Command {
	group := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file",
	}
	group.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Print the mistakes in a configuration file",
		Long: `Print the mistakes in a configuration file.

Nix reads FILE, as it does for NIX_SANDBOX_CONFIG, and builds nothing.`,
		RunE: func(*cobra.Command, []string) error {
			return withoutWrapper("asks Nix")
		},
	})
	return group
}

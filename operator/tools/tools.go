// Package tools has the commands of a server with [tools], and below it the programs of one.
package tools

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/gate"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/lock"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// Command manages the tools that code may call.
func Command(std cli.Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "tools", Short: "Manage the tools that code may call"}
	var path string
	var check bool
	one := &cobra.Command{
		Use:   "lock",
		Short: "Write what servers of tools say of their tools to a file",
		Long: "Starts each server of the configuration's [tools] in its jail, and writes the names, descriptions and schemas of its tools to " + lock.Name + ".\n\n" +
			"Keep that file beside the configuration, look at what has changed, and build the server again: code calls no tool that differs from it. Servers are built from the configuration first.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, _, err := config.Load()
			if err != nil {
				return err
			}
			catalog, err := gate.Load(settings.Metadata)
			if err == nil && catalog == nil {
				err = &config.Error{Problem: "this server has no [tools]", Hint: "add a table [tools.NAME] to the configuration that the server is built from, and build it again"}
			}
			if err != nil {
				return err
			}
			before, err := lock.Read(path)
			if err != nil {
				return err
			}
			after, err := lock.Make(cmd.Context(), catalog, slog.New(slog.NewTextHandler(terminal.Visible(std.Err), nil)))
			if err != nil {
				return err
			}
			out := io.Writer(terminal.Visible(std.Out))
			changes := after.Compare(before, out)
			switch {
			case changes == 0:
				fmt.Fprintf(out, "%s is up to date\n", path)
				return nil
			case check:
				return command.End(command.Failed, fmt.Sprintf("%d tools differ from %s", changes, path), "look at them, and run "+cli.Program+" tools lock")
			}
			if err := after.Write(path); err != nil {
				return fmt.Errorf("write the lock file: %w", err)
			}
			fmt.Fprintf(out, "wrote %s: look at it, and build the server again\n", path)
			return nil
		},
	}
	one.Flags().StringVar(&path, "file", lock.Name, "read and write the lock file at `PATH`")
	one.Flags().BoolVar(&check, "check", false, "write nothing, and fail if a tool differs")
	cmd.AddCommand(one)
	return cmd
}

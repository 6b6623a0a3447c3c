package program

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// programCommand is the program without a command. The wrapper starts the small runtime if
// there is a client to serve: a client has no terminal, and is served even without --stdio.
func programCommand(std cli.Streams) *cobra.Command {
	var flags command.Serve
	var version bool
	cmd := &cobra.Command{
		Use:     cli.Program,
		Long:    about,
		Example: "  " + cli.Program + " --stdio\n  " + cli.Program + " run python -c 'print(6 * 7)'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.Check(); err != nil {
				return err
			}
			switch {
			case version:
				fmt.Fprintln(std.Out, versionLine())
			case flags.Stdio:
				return withoutWrapper("starts the server")
			default:
				writeNextSteps(std.Out, cmd)
			}
			return nil
		},
	}
	flags.Add(cmd.Flags())
	cmd.Flags().BoolVar(&version, "version", false, "print the version")
	return cmd
}

// serveCommand starts the gateway.
func serveCommand() *cobra.Command {
	var flags command.Serve
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve many clients over HTTP",
		Long: "Serve every client that connects to an address: that of --http, or of NIX_SANDBOX_HTTP, or of the\n" +
			"configuration. Those who call from other machines need a token (" + cli.Program + " token new).",
		Example: "  " + cli.Program + " serve\n  " + cli.Program + " serve --http 127.0.0.1:8080",
		Args:    cli.AtMost(0),
		RunE: func(*cobra.Command, []string) error {
			if err := flags.Check(); err != nil {
				return err
			}
			args := []string{"--log-format", flags.LogFormat}
			if flags.Stdio {
				args = append(args, "--stdio")
			}
			if flags.HTTP != "" {
				args = append(args, "--http", flags.HTTP)
			}
			return command.Gateway("serve takes clients over HTTP", args...)
		},
	}
	flags.Add(cmd.Flags())
	flags.AddHTTP(cmd.Flags())
	return cmd
}

// withoutWrapper returns the error of a command that the wrapper does itself.
func withoutWrapper(does string) error {
	return &config.Error{
		Problem: "this program was started without its wrapper, which " + does,
		Hint:    "start the server that Nix built (result/bin/nix-sandbox-mcp)",
	}
}

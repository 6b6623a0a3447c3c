package program

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// tokenCommand makes tokens for clients that call over HTTP.
func tokenCommand(std cli.Streams) *cobra.Command {
	var class, file string
	create := &cobra.Command{
		Use:   "new NAME",
		Short: "Make a token",
		Long: "Make a token for NAME and print it, and the line for it in the file of NIX_SANDBOX_TOKENS. The\n" +
			"line has the hash of the token, which is stored nowhere.",
		Example: "  " + cli.Program + " token new alice\n  " + cli.Program + " token new alice --file tokens",
		Args:    cli.Needs(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			token, line, err := principal.NewToken(args[0], class)
			if err != nil {
				return command.Misuse(err.Error(), cli.SeeHelp(cmd))
			}
			if file == "" {
				fmt.Fprintf(std.Out, "%s\n%s\n", token, line)
				return nil
			}
			if err := addLine(file, line); err != nil {
				return err
			}
			fmt.Fprintln(std.Out, token)
			return nil
		},
	}
	create.Flags().StringVar(&class, "class", "", "give NAME the quotas of this `CLASS`")
	create.Flags().StringVar(&file, "file", "", "add the line to `FILE`, and print only the token")
	cmd := &cobra.Command{Use: "token", Short: "Make tokens for clients that call over HTTP"}
	cmd.AddCommand(create)
	return cmd
}

// addLine adds a line to the file of tokens.
func addLine(path, line string) error {
	err := principal.AddLine(path, line)
	if err == nil {
		return nil
	}
	hint := "name a file that you may write, in a folder that exists"
	var unusable *principal.UnusableError
	if errors.As(err, &unusable) {
		hint = "the file stays as it is: correct its mistake, or use the class of the other lines with this name"
	}
	return &config.Error{Problem: fmt.Sprintf("the line could not be added to %s: %v", path, err), Hint: hint}
}

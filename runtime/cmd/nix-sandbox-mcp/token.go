package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/principal"
)

// tokenCommand makes tokens for those who call over HTTP.
func tokenCommand(std streams) *cobra.Command {
	var class, file string
	create := &cobra.Command{
		Use:   "new NAME",
		Short: "Make a token",
		Long: "Make a token for NAME, print it, and print the line that gives it to NAME in the file of\n" +
			"NIX_SANDBOX_TOKENS. The token is nowhere else: the line has its hash.",
		Example: "  " + program + " token new alice\n  " + program + " token new alice --file tokens",
		Args:    needs(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			token, line, err := principal.NewToken(args[0], class)
			if err != nil {
				return &misuse{err.Error(), seeHelp(cmd)}
			}
			if file == "" {
				fmt.Fprintf(std.out, "%s\n%s\n", token, line)
				return nil
			}
			if err := appendLine(file, line); err != nil {
				return err
			}
			fmt.Fprintln(std.out, token)
			return nil
		},
	}
	create.Flags().StringVar(&class, "class", "", "give NAME the quotas of this `CLASS`")
	create.Flags().StringVar(&file, "file", "", "add the line to `FILE`, and print the token alone")
	cmd := &cobra.Command{Use: "token", Short: "Make tokens for those who call over HTTP"}
	cmd.AddCommand(create)
	return cmd
}

// appendLine adds a line to a file, which it makes for its owner alone where there is
// none.
func appendLine(path, line string) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		// Somebody may have written the last line without an end.
		last := make([]byte, 1)
		if info, problem := file.Stat(); problem == nil && info.Size() > 0 {
			if _, problem := file.ReadAt(last, info.Size()-1); problem == nil && last[0] != '\n' {
				line = "\n" + line
			}
		}
		_, err = fmt.Fprintln(file, line)
		err = errors.Join(err, file.Close())
	}
	var problem *fs.PathError
	if errors.As(err, &problem) {
		err = problem.Err
	}
	if err != nil {
		return &ending{failed, fmt.Sprintf("the line could not be added to %s: %v", path, err), "name a file that you may write, in a folder that exists"}
	}
	return nil
}

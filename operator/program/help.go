package program

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
)

// about describes the program.
const about = "Serves sandboxes to a language model over MCP, and lets you list, run and examine them."

// variables describes the environment variables.
const variables = `PROJECT_DIR                folder to show in every sandbox
PROJECT_MOUNT              where it is shown (/project)
PROJECT_MODE               readonly, overlay: code may write, and changes shows what, or write: at once (readonly)
PROJECT_USE_FLAKE          1: the project's devShells.default is an environment
NIX_SANDBOX_INBOX          folder of files for the code, at /inbox in every sandbox, to read
NIX_SANDBOX_OUTPUTS        folder to which files from /workspace/outputs are copied
NIX_SANDBOX_CDI            folders of specifications of devices, with colons between them
SESSION_IDLE_TIMEOUT       seconds until an unused session ends (28800 in the default server, else 300)
SESSION_MAX_LIFETIME       seconds until a session ends (604800 in the default server, else 3600)
SESSION_MAX                how many sessions there may be at once (64; over HTTP 1024)
SESSION_KEEP_FILES         1: the files of a session are kept after its end
NIX_SANDBOX_CONFIG         TOML file, in place of yours and of the server's own
NIX_SANDBOX_ENVS           flake references of further sandboxes, with commas between them
NIX_SANDBOX_DIR            folders of further sandboxes, with colons between them
NIX_SANDBOX_HTTP           address for serve, in place of the configuration's
NIX_SANDBOX_HOSTS          names of this server for clients over HTTP, with commas between
                           them, besides the configuration's
NIX_SANDBOX_TOKENS         file of the tokens with which clients may call over HTTP
NIX_SANDBOX_METRICS        address for metrics, in place of the configuration's
NIX_SANDBOX_AUDIT          file of the audit log, a record for each call
NIX_SANDBOX_START_SECONDS  seconds that a sandbox may take to start (10)
NIX_SANDBOX_METADATA       what the server was built with: JSON, or its path
`

const statuses = `0    success
1    it failed; the error says why
2    the command line is wrong
124  the code exceeded its time limit
125  there is no sandbox for the code: no environment of that name, or it
     is not built, or does not start
else that of the code: 128 + N if signal N ended it (137: it exceeded a
     limit)
`

// initHelp adds a page of help about variables and exit statuses, and has the command help refuse words that are not
// commands.
func initHelp(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use:   "variables",
		Short: "Environment variables and exit statuses",
		Long:  "Environment variables:\n" + indent(variables) + "\nExit statuses:\n" + indent(statuses),
	})
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(cmd *cobra.Command, args []string) error {
		found, rest, _ := root.Find(args)
		if len(rest) > 0 {
			return unknownCommand(found, rest[0])
		}
		return nil
	}
}

// writeNextSteps greets a user who started the program at a terminal.
func writeNextSteps(w io.Writer, root *cobra.Command) {
	fmt.Fprintf(w, "%s %s: sandboxes for a language model, over MCP\n\n", cli.Program, command.Version())
	fmt.Fprint(w, "An MCP client starts this server. You can use these commands:\n\n")
	for _, cmd := range root.Commands() {
		fmt.Fprintf(w, "  %-*s %s\n", cmd.NamePadding(), cmd.Name(), cmd.Short)
	}
	fmt.Fprintf(w, "\nNext: list the environments, and configure your client:\n\n  %[1]s list\n  %[1]s client-config claude-code --install\n", os.Args[0])
}

// indent moves lines to the right.
func indent(lines string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(lines, "\n"), "\n", "\n  ") + "\n"
}

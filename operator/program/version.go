package program

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// maxServerMetadata bounds the server's metadata, in bytes.
const maxServerMetadata = 4 << 20

// validRevision matches a commit as Nix writes it.
var validRevision = lazyregexp.New(`^[0-9a-f]{40}(-dirty)?$`)

// versionCommand prints what --version prints.
func versionCommand(std cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cli.AtMost(0),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(std.Out, versionLine())
			return err
		},
	}
}

// versionLine returns the line that --version prints.
func versionLine() string {
	line := cli.Program + " " + command.Version()
	if commit := revision(); commit != "" {
		line += " (" + commit + ")"
	}
	return line
}

// revision returns the commit that the server was built from, or "" if it is not known. It is in
// the server's metadata, because in the program it would compile that again for each commit.
func revision() string {
	text := os.Getenv("NIX_SANDBOX_METADATA")
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		data, _ := bounded.ReadFile(text, maxServerMetadata) // without a file, no commit is known
		text = string(data)
	}
	if !gjson.Valid(text) {
		return ""
	}
	if commit := gjson.Get(text, "revision").String(); validRevision.MatchString(commit) {
		return commit
	}
	return ""
}

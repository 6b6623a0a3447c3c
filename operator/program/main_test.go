package program

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
)

func TestProgram_ReportsMistakes(t *testing.T) {
	t.Setenv("NIX_SANDBOX_GATEWAY", "")
	t.Setenv("NIX_SANDBOX_METADATA", "")
	for name, test := range map[string]struct {
		args   []string
		status int
		want   string // on either stream
	}{
		"help":              {[]string{"--help"}, 0, "Usage:\n  nix-sandbox-mcp [flags]\n"},
		"version":           {[]string{"--version"}, 0, "nix-sandbox-mcp "},
		"help of a command": {[]string{"help", "help"}, 0, "Usage:\n  nix-sandbox-mcp help [command] [flags]\n"},
		"nothing":           {nil, 0, "Next: list the environments"},
		"unknown command":   {[]string{"sevre"}, 2, "nix-sandbox-mcp: error: unknown command \"sevre\"\nnix-sandbox-mcp: hint: try nix-sandbox-mcp serve, or see nix-sandbox-mcp --help\n"},
		"unknown flag":      {[]string{"--http"}, 2, "nix-sandbox-mcp: error: unknown flag --http\nnix-sandbox-mcp: hint: "},
		"no value":          {[]string{"--log-format"}, 2, "nix-sandbox-mcp: error: --log-format needs a value\n"},
		"argument":          {[]string{"--stdio", "x"}, 2, `nix-sandbox-mcp: error: unknown command "x"`},
		"log format":        {[]string{"--stdio", "--log-format=xml"}, 2, `nix-sandbox-mcp: error: --log-format is "xml"`},
		"server":            {[]string{"--stdio"}, 1, "nix-sandbox-mcp: error: this program was started without its wrapper"},
		"serve":             {[]string{"serve"}, 1, "nix-sandbox-mcp: error: serve takes clients over HTTP, and this server was built without [serve]\nnix-sandbox-mcp: hint: add the line [serve] to the configuration"},
		"no metadata":       {[]string{"list"}, 1, "nix-sandbox-mcp: error: NIX_SANDBOX_METADATA is not set\nnix-sandbox-mcp: hint: "},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			status := run(test.args, cli.Streams{In: strings.NewReader(""), Out: &out, Err: &out})
			if status != test.status || !strings.Contains(out.String(), test.want) {
				t.Errorf("status %d, wrote %q; want status %d and %q", status, &out, test.status, test.want)
			}
		})
	}
}

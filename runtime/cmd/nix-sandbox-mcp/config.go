package main

import (
	"flag"
	"fmt"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// configCommand is here for the help. Nix reads configurations, and the
// wrapper that Nix built around this program asks it.
func configCommand() command {
	return command{
		name:    "config",
		args:    "check FILE",
		first:   "check",
		summary: "say what is wrong with a configuration file",
		details: "Nix reads FILE, as it does for NIX_SANDBOX_CONFIG, and builds nothing.\n",
		define: func(*flag.FlagSet) runner {
			return func(_ streams, args []string) (int, error) {
				if len(args) != 2 || args[0] != "check" {
					return 0, &misuse{"config takes the word check and a file", fmt.Sprintf("write %s config check FILE", program)}
				}
				return 0, &config.Error{
					Problem: "this program was started without its wrapper, which asks Nix",
					Hint:    "start the server that Nix built (result/bin/nix-sandbox-mcp)",
				}
			}
		},
	}
}

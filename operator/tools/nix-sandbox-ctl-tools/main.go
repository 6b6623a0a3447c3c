// Command nix-sandbox-ctl-tools is nix-sandbox-ctl of a server with [tools].
package main

import (
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/program"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/tools"
)

func main() { program.Main(tools.Command) }

// Command nix-sandbox-gateway-tools is nix-sandbox-gateway of a server with [tools].
package main

import (
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/program"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox"
)

func main() { program.Main(parts.With{Tools: toolbox.Add}) }

// Command nix-sandbox-mcp-tools is nix-sandbox-mcp of a server with [tools].
package main

import (
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/stdio"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox"
)

func main() { stdio.Main(parts.With{Tools: toolbox.Add}) }

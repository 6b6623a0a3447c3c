// Command nix-sandbox-mcp serves the sandboxes that Nix built to one client over MCP, on its
// standard streams.
package main

import (
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/stdio"
)

func main() { stdio.Main(parts.With{}) }

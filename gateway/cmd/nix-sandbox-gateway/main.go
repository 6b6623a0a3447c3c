// Command nix-sandbox-gateway serves sandboxes to many clients over HTTP.
package main

import (
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/program"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts"
)

func main() { program.Main(parts.With{}) }

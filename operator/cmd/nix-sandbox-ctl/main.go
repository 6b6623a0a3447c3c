// Command nix-sandbox-ctl has the commands of nix-sandbox-mcp that do not serve.
package main

import "github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/program"

func main() { program.Main() }

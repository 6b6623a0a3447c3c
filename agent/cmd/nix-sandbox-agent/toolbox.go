//go:build toolbox

package main

import "github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/inside"

func init() { between = inside.Between }

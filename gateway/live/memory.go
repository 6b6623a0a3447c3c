package live

import (
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/status"
)

var pid = os.Getpid()

// memory measures all processes.
func memory() status.Memory { return status.Memory(watch.Measure()) }

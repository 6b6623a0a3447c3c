package workspace

import (
	"os"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/scratch"
)

// The workspaces of sandboxes are in memory, too.
func TestMain(m *testing.M) { os.Exit(scratch.Main(m)) }

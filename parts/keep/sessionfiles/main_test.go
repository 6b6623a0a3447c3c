package sessionfiles

import (
	"os"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/scratch"
)

func TestMain(m *testing.M) { os.Exit(scratch.Main(m)) }

package desk

import (
	"path/filepath"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// The time that a server spends after its first answer until it listens.
func BenchmarkListen(b *testing.B) {
	folder := filepath.Join(b.TempDir(), "run")
	for b.Loop() {
		must.Get(listen([]string{folder}, nil))(b).Close()
	}
}

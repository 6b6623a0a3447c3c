package seed_test

import (
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

func TestNew_RepeatsTheSeedOfTheVariable(t *testing.T) {
	t.Setenv(seed.Variable, "42")
	first, second := seed.New(t).Uint64(), seed.New(t).Uint64()
	t.Setenv(seed.Variable, "43")
	if other := seed.New(t).Uint64(); first != second || first == other {
		t.Errorf("seed 42 drew %d and %d, seed 43 drew %d", first, second, other)
	}
}

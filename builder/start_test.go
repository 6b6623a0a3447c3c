package builder

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// While a configuration has mistakes, a reference is built again when that is asked for.
func TestEnvironments_BuildReferencesBesideMistakes(t *testing.T) {
	r := newRig(t)
	r.program("nix", `while [ $# -gt 1 ]; do case $1 in --out-link) root=$2;; esac; shift; done
echo $1 >>$PROGRAMS/built
ln -sfn $PROGRAMS/artifact $root`)
	built := func() int {
		text, _ := os.ReadFile(filepath.Join(r.programs, "built"))
		return strings.Count(string(text), ".#one\n")
	}
	config := filepath.Join(t.TempDir(), "config.toml")
	must.Write(t, config, "mistake", 0o644)
	e := NewEnvironments(Environments{
		Nix: &Nix{Start: "start.nix", Log: &r.log}, Folder: t.TempDir(), Cache: t.TempDir(), Watched: config, Replan: []string{"false"},
	}, Plan{Items: []Item{{Kind: "reference", Name: "one", Value: ".#one", Base: t.TempDir()}}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx)
	}()
	patience.Until(t, "it is built", func() bool { return built() == 1 })
	patience.Until(t, "it is reported", func() bool {
		_, err := os.Stat(filepath.Join(e.Folder, "one", "metadata.json"))
		return err == nil
	})
	e.Again()
	patience.Until(t, "it is built again", func() bool { return built() == 2 })
	cancel()
	<-done
}

package escape

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// TestEscape runs the suite on the sandboxes that package undertest names.
// NIX_SANDBOX_ESCAPE_SKIP lists tags to leave out beside those that are not
// promised ("none" leaves out nothing), and NIX_SANDBOX_ESCAPE_MATCH patterns
// of names, separated by commas.
func TestEscape(t *testing.T) {
	artifacts := undertest.Artifacts(t)
	list := func(name string) []string {
		return strings.FieldsFunc(os.Getenv(name), func(char rune) bool { return char == ',' })
	}
	skip := list("NIX_SANDBOX_ESCAPE_SKIP")
	if !slices.Contains(skip, "none") {
		skip = append(skip, Unpromised()...)
	}
	for _, dir := range artifacts {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			report, err := Run(context.Background(), dir, Options{
				Match: list("NIX_SANDBOX_ESCAPE_MATCH"),
				Skip:  skip,
				Slow:  patience.Factor(),
				Each: func(result Result) {
					if result.Verdict == Failed {
						t.Error(result)
						return
					}
					t.Log(result)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Log(report)
			if !report.OK() {
				t.Fail()
			}
		})
	}
}

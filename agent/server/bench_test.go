package server_test

import (
	"testing"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
)

// The round trip of a small call, beside which everything else of a warm call
// is to be measured.
func BenchmarkCall(b *testing.B) {
	for kind, code := range map[string]string{
		"python": "print(1+1)", "bash": "echo 2", "node": "console.log(2)",
	} {
		b.Run(kind, func(b *testing.B) {
			a := Start(b, kind).Warm()
			for b.Loop() {
				if got := a.Run(code); got.Stdout != "2\n" {
					b.Fatalf("%+v", got)
				}
			}
		})
	}
}

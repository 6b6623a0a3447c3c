package tool

import "testing"

// BenchmarkSession is a warm call without the transport.
func BenchmarkSession(b *testing.B) {
	bench := lay(b, nil)
	for b.Loop() {
		if got := text(bench.call(b.Context(), "python", "s", "print(1+1)", nil)); got != "2\n" {
			b.Fatal(got)
		}
	}
}

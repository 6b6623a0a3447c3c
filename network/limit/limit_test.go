package limit_test

import (
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/limit"
)

func TestBytes_DividesWhatIsLeft(t *testing.T) {
	const total, streams = 64 << 20, 128
	b := limit.NewBytes(total, streams)
	// Each stream asks, and all carry their pieces at the same time.
	var used int64
	for b.Piece() > 0 {
		var pieces [streams]int64
		for i := range pieces {
			pieces[i] = b.Piece()
		}
		for _, n := range pieces {
			b.Use(n)
			used += n
		}
	}
	if used < total || used > total+streams*4<<10 {
		t.Errorf("%d bytes are used of %d", used, total)
	}
	// Slow streams have pieces while a fast one uses up what is left.
	b = limit.NewBytes(total, streams)
	used = 0
	for range streams - 1 {
		used += b.Piece()
	}
	for n := b.Piece(); n > 0; n = b.Piece() {
		b.Use(n)
		used += n
	}
	if used > total+streams*64<<10 {
		t.Errorf("%d bytes are used of %d beside slow streams", used, total)
	}
	single := limit.NewBytes(5000, 1)
	if n := single.Piece(); n != 5000 || single.Use(n) || single.Piece() != 0 {
		t.Errorf("a single stream of 5000 bytes gets %d", n)
	}
}

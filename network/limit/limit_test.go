package limit_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/limit"
)

func TestBucket_GivesItsBurstAndThenItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limit.NewBucket(10, 5)
		time.Sleep(time.Hour) // it never has more than its burst
		for i := range 5 {
			if wait, ok := b.Take(0); !ok || wait != 0 {
				t.Fatalf("token %d: %v, %v", i, wait, ok)
			}
		}
		if _, ok := b.Take(0); ok {
			t.Fatal("a sixth token")
		}
		for i := range 10 {
			want := time.Duration(i+1) * 100 * time.Millisecond
			if wait, ok := b.Take(time.Second); !ok || wait.Round(time.Millisecond) != want {
				t.Fatalf("waiting token %d: %v, %v", i, wait, ok)
			}
		}
		if _, ok := b.Take(time.Second); ok {
			t.Fatal("a token for which a second is too short")
		}
		start := time.Now()
		for range 20 {
			b.Wait()
		}
		if took := time.Since(start).Round(10 * time.Millisecond); took != 3*time.Second {
			t.Errorf("20 more took %v", took)
		}
	})
}

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
	single := limit.NewBytes(5000, 1)
	if n := single.Piece(); n != 5000 || single.Use(n) || single.Piece() != 0 {
		t.Errorf("a single stream of 5000 bytes gets %d", n)
	}
}

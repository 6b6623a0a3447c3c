package mcphttp

import (
	"testing"
	"time"
)

func TestLineLimit_CountsWhatItDrops(t *testing.T) {
	var l lineLimit
	now := time.Unix(1000, 0)
	written := 0
	for range 100 {
		if _, ok := l.line(now); ok {
			written++
		}
	}
	if written != linesPerSecond {
		t.Errorf("%d lines in a second, want %d", written, linesPerSecond)
	}
	if dropped, ok := l.line(now.Add(time.Second)); !ok || dropped != 100-linesPerSecond {
		t.Errorf("the next line: %v, after %d that were dropped", ok, dropped)
	}
}

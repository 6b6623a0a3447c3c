package patience_test

import (
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

func TestFor_StretchesUpToAMinute(t *testing.T) {
	t.Setenv(patience.Variable, "")
	unit := time.Duration(patience.Factor()) // 2 under the race detector
	for value, want := range map[string]map[time.Duration]time.Duration{
		"":     {time.Second: unit * time.Second, 2 * time.Minute: 2 * time.Minute},
		"5":    {time.Second: 5 * unit * time.Second, 50 * time.Second: time.Minute, 2 * time.Minute: 2 * time.Minute},
		"-3":   {time.Second: unit * time.Second},
		"slow": {time.Second: unit * time.Second},
	} {
		t.Setenv(patience.Variable, value)
		for d, want := range want {
			if got := patience.For(d); got != want {
				t.Errorf("%s=%s: For(%v) is %v, want %v", patience.Variable, value, d, got, want)
			}
		}
	}
}

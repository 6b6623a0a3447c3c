package limitkeeper

import (
	"context"
	"math/rand/v2"
	"testing"
)

// Code whose kernel memory nothing counts is found by what the machine's memory does when
// it is stopped. A neighbour of such code is not.
func TestTry_FindsWhoTakesTheKernelsMemory(t *testing.T) {
	if r := inJail(t, "trials", "events"); !r.Responsible {
		t.Error("code that has the kernel keep events is not found")
	}
	if r := inJail(t, "trials", "inodes"); r.Responsible {
		t.Error("kernel memory that is counted is held against the code a second time")
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- takeEvents(ctx, t.TempDir()) }()
	if r := inJail(t, "trials", "rest"); r.Responsible {
		t.Error("code that rests is taken for what another process does")
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestMachineWatch_AwaitsGrowth(t *testing.T) {
	w := machineWatch{allowed: 100, base: 1000}
	for _, step := range []struct {
		now  int64
		want bool
	}{{1100, false}, {1101, true}, {900, false}, {1000, false}, {1001, true}} {
		if got := w.suspicious(step.now); got != step.want {
			t.Errorf("at %d: %v, want %v", step.now, got, step.want)
		}
	}
	w.rebase(1001)
	if w.suspicious(1026) || !w.suspicious(1027) {
		t.Error("the next trial does not wait for a quarter of what is allowed")
	}
}

// Growth that has nothing to do with the sandbox, steady or in bursts, does not convict it.
func TestMachineWatch_AcquitsNeighbours(t *testing.T) {
	const sandboxes = 2000
	for _, rate := range []float64{0.1, 0.5, 1} {
		convicted := 0
		for range sandboxes {
			var w machineWatch
			for range 20 * trialRounds {
				grown := func() int64 {
					if rand.Float64() < rate {
						return rand.Int64N(64 << 20)
					}
					return 0
				}
				if w.note(grown(), grown()); w.responsible() {
					convicted++
					break
				}
			}
		}
		if convicted > sandboxes/100 {
			t.Errorf("growth in %.0f %% of the time: %d of %d sandboxes are convicted", 100*rate, convicted, sandboxes)
		}
	}
	var w machineWatch
	for range enoughGuilt {
		w.note(2*trialNoise, 0)
	}
	if !w.responsible() {
		t.Error("a sandbox that alone grows is acquitted")
	}
}

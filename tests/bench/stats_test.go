package main

import (
	"math"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, test := range []struct {
		values []time.Duration
		q      float64
		want   time.Duration
	}{
		{nil, 0.5, 0},
		{[]time.Duration{7}, 0, 7},
		{[]time.Duration{7}, 0.99, 7},
		{[]time.Duration{1, 2, 3, 4}, 0.5, 2},
		{hundred, 0.5, 50},
		{hundred, 0.95, 95},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
	} {
		if got := quantile(test.values, test.q); got != test.want {
			t.Errorf("quantile of %d values at %g is %d, want %d", len(test.values), test.q, got, test.want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3},
	} {
		if got := median(test.values); got != test.want {
			t.Errorf("median is %g, want %g", got, test.want)
		}
	}
}

func TestRatioHoldsOnABusyMachine(t *testing.T) {
	// One contender takes three times as long as the other, on a machine
	// whose speed changes by a factor of ten between rounds, and stumbles
	// once.
	var fast, slow series
	for round := range 30 {
		pace := time.Duration(1 + round%10)
		fast.Rounds = append(fast.Rounds, []time.Duration{pace * time.Millisecond})
		slow.Rounds = append(slow.Rounds, []time.Duration{3 * pace * time.Millisecond})
	}
	slow.Rounds[4][0] = time.Minute
	if got := ratio(&slow, &fast); got != 3 {
		t.Errorf("ratio is %g, want 3", got)
	}
}

func TestRatioPairsRounds(t *testing.T) {
	ms := func(values ...time.Duration) []time.Duration { return values }
	// Had a's only turn been compared with all of b's, it would be 4.
	a := series{Rounds: [][]time.Duration{nil, nil, ms(4, 4, 90)}}
	b := series{Rounds: [][]time.Duration{ms(1), ms(1), ms(2), ms(1)}}
	if got := ratio(&a, &b); got != 2 {
		t.Errorf("ratio is %g, want 2", got)
	}
	if got := ratio(&a, &series{Rounds: [][]time.Duration{ms(1)}}); got != 0 {
		t.Errorf("ratio of two that never met is %g, want 0", got)
	}
}

func TestRowsKeepGaps(t *testing.T) {
	got := rows([]*series{
		{Name: "base", Rounds: [][]time.Duration{{2 * time.Millisecond}}},
		{Name: "twice", Rounds: [][]time.Duration{{4 * time.Millisecond}}, CPU: time.Millisecond, Memory: 3 << 20},
		{Name: "missing", Gap: "not installed"},
	}, "base")
	if got[1].Ratio != 2 || got[1].P50 != 4 || got[1].Calls != 1 || got[1].CPU != 1 || got[1].Memory != 3 {
		t.Errorf("row is %+v", got[1])
	}
	if got[2].Gap != "not installed" || got[2].Calls != 0 || got[2].Ratio != 0 {
		t.Errorf("gap is %+v", got[2])
	}
	if math.IsNaN(got[2].P50) {
		t.Error("a gap has no number")
	}
}

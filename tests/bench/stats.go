package main

import (
	"math"
	"slices"
	"time"
)

// series contains the measurements of one contender. Rounds has one slice for each
// round, which is empty if the contender had no turn.
type series struct {
	Name   string
	Gap    string // why there is nothing; empty where there is
	Rounds [][]time.Duration
	CPU    time.Duration // a call
	Memory int64         // bytes of one sandbox; 0 is not measured
}

// quantile is the q-quantile, 0 to 1, of values in ascending order: the
// smallest value that at least that share of them does not exceed. It is 0
// where there are no values.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// median is the middle of values, which it sorts.
func median[T int64 | float64 | time.Duration](values []T) T {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// ratio is how much longer a call of a takes than one of b: the median, over
// the rounds in which both had a turn, of the ratio of their medians in that
// round. What slows the machine for a while slows both sides of a pair, so it
// leaves the ratio as it is. It is 0 where the two never met.
func ratio(a, b *series) float64 {
	var pairs []float64
	for i := range min(len(a.Rounds), len(b.Rounds)) {
		x, y := median(slices.Clone(a.Rounds[i])), median(slices.Clone(b.Rounds[i]))
		if x > 0 && y > 0 {
			pairs = append(pairs, float64(x)/float64(y))
		}
	}
	return median(pairs)
}

// rows sums the series up; base names the one that ratios refer to.
func rows(all []*series, base string) []row {
	var reference *series
	for _, s := range all {
		if s.Name == base {
			reference = s
		}
	}
	list := make([]row, 0, len(all))
	for _, s := range all {
		r := row{Name: s.Name, Gap: s.Gap, series: s}
		if s.Gap == "" {
			times := slices.Concat(s.Rounds...)
			slices.Sort(times)
			r.Calls = len(times)
			r.P50 = milliseconds(quantile(times, 0.50))
			r.P95 = milliseconds(quantile(times, 0.95))
			r.P99 = milliseconds(quantile(times, 0.99))
			r.CPU = milliseconds(s.CPU)
			r.Memory = mebibytes(s.Memory)
			if reference != nil {
				r.Ratio = ratio(s, reference)
			}
		}
		list = append(list, r)
	}
	return list
}

func milliseconds(d time.Duration) float64 {
	return float64(d) / float64(time.Millisecond)
}

func mebibytes(bytes int64) float64 {
	return float64(bytes) / (1 << 20)
}

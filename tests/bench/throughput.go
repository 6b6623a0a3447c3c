package main

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// slice is how long a contender works before the next one's turn.
const slice = 2 * time.Second

// throughput measures calls a second without a session, with as many callers
// as the machine has cores, each contender for b.duration in slices.
func (b *bench) throughput(ctx context.Context, say func(string, ...any)) (rates, error) {
	a, w := b.found["python"], small["python"]
	list := []contender{
		b.plain(a, w),
		b.jail(a, w),
		b.call(a, "run, nothing in stock", b.cold, "", w.code, w.want),
		b.call(a, "run, one sandbox in stock", b.warm, "", w.code, w.want),
		b.call(a, "run in a session for each caller", b.cold, "bench", w.code, w.want),
	}
	result := rates{Callers: runtime.NumCPU(), Base: plainName}
	say("python: calls a second, %d callers", result.Callers)
	calls := make([]int64, len(list))
	spent := make([]time.Duration, len(list))
	for _, c := range list {
		if err := bounded(ctx, c.Prepare); err != nil {
			return result, err
		}
		defer c.Close()
		if _, err := turn(ctx, entry{contender: c, batch: warmUps}); err != nil {
			return result, err
		}
	}
	for range max(1, int(b.duration/slice)) {
		for i, c := range list {
			n, took, err := rush(ctx, c, result.Callers)
			if err != nil {
				return result, err
			}
			calls[i] += n
			spent[i] += took
			if s, ok := c.(settler); ok {
				s.Settle(ctx)
			}
		}
	}
	for i, c := range list {
		cpu, err := c.CPU(ctx)
		if err != nil {
			return result, err
		}
		result.Rows = append(result.Rows, rate{
			Name:  c.Name(),
			Calls: calls[i],
			Rate:  float64(calls[i]) / spent[i].Seconds(),
			CPU:   milliseconds(cpu),
		})
	}
	for i := range result.Rows {
		result.Rows[i].Ratio = result.Rows[i].Rate / result.Rows[0].Rate
	}
	return result, nil
}

// rush has callers call one contender for a slice, each without a pause.
func rush(ctx context.Context, c contender, callers int) (int64, time.Duration, error) {
	var calls atomic.Int64
	var wait sync.WaitGroup
	errs := make([]error, callers)
	began := time.Now()
	for i := range callers {
		mine := c
		if s, ok := c.(*served); ok && s.session != "" {
			// A session answers one caller at a time: each has its own.
			own := *s
			own.session += string(rune('a' + i%26))
			mine = &own
		}
		wait.Go(func() {
			for time.Since(began) < slice && errs[i] == nil {
				errs[i] = bounded(ctx, func(ctx context.Context) error {
					_, err := mine.Call(ctx)
					return err
				})
				calls.Add(1)
			}
		})
	}
	wait.Wait()
	return calls.Load(), time.Since(began), errors.Join(errs...)
}

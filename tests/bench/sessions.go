package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// Bounds of the load on live sessions: each calls that often, or as often as
// there is time for.
const (
	loadCalls = 20
	loadTime  = 4 * time.Second
	starters  = 4 // sessions, or interpreters, that start at once
)

// sessions measures what live sessions weigh and how fast they answer when
// all of them call at once, and the idle server.
func (b *bench) sessions(ctx context.Context, counts []int, say func(string, ...any)) (live, error) {
	var result live
	a := b.found["python"]
	idle := launch{program: b.server, metadata: b.cold, env: b.env}
	s, _, err := idle.start(ctx)
	if err != nil {
		return result, err
	}
	before := treeCPU(s.PID())
	const rest = 2 * time.Second
	time.Sleep(rest)
	after := treeCPU(s.PID())
	size, err := procfs.Memory(s.PID())
	if err := errors.Join(err, s.Close()); err != nil {
		return result, err
	}
	result.IdleMemory = mebibytes(size)
	result.IdleCPU = milliseconds(after-before) / rest.Seconds()
	for _, n := range counts {
		say("python: %d live sessions", n)
		row, err := b.live(ctx, a, n)
		if err != nil {
			return result, fmt.Errorf("%d sessions: %w", n, err)
		}
		result.Rows = append(result.Rows, row)
	}
	return result, nil
}

// live measures n sessions, and after them n bare interpreters.
func (b *bench) live(ctx context.Context, a artifact, n int) (liveRow, error) {
	row := liveRow{Sessions: n}
	w := small["python"]
	l := launch{program: b.server, metadata: b.cold, reaped: true,
		env: append([]string{"SESSION_MAX=" + fmt.Sprint(max(n, 1))}, b.env...)}
	s, _, err := l.start(ctx)
	if err != nil {
		return row, err
	}
	defer s.Close()
	name := func(i int) string { return fmt.Sprintf("bench-%d", i) }
	began := time.Now()
	err = many(n, starters, func(i int) error {
		return bounded(ctx, func(ctx context.Context) error {
			_, err := s.run(ctx, a.environment, name(i), w.code, w.want)
			return err
		})
	})
	if err != nil {
		return row, err
	}
	row.Start = milliseconds(time.Since(began)) / float64(n)
	quiet(ctx, s.PID())
	server, err := s.process()
	if err != nil {
		return row, err
	}
	size, err := procfs.Memory(procfs.Descendants(server)...)
	if err != nil {
		return row, err
	}
	row.Memory = mebibytes(size) / float64(n)
	if size, err = procfs.Memory(server); err != nil {
		return row, err
	}
	row.Server = mebibytes(size)

	var mu sync.Mutex
	var times []time.Duration
	began = time.Now()
	err = many(n, n, func(i int) error {
		for range loadCalls {
			if time.Since(began) > loadTime {
				break
			}
			var took time.Duration
			err := bounded(ctx, func(ctx context.Context) (err error) {
				took, err = s.run(ctx, a.environment, name(i), w.code, w.want)
				return err
			})
			if err != nil {
				return err
			}
			mu.Lock()
			times = append(times, took)
			mu.Unlock()
		}
		return nil
	})
	if err != nil {
		return row, err
	}
	row.Rate = float64(len(times)) / time.Since(began).Seconds()
	slices.Sort(times)
	row.P50 = milliseconds(quantile(times, 0.50))
	row.P99 = milliseconds(quantile(times, 0.99))

	// As many interpreters with nothing around them.
	all := make([]*piped, n)
	defer func() {
		for _, p := range all {
			if p != nil {
				p.Close()
			}
		}
	}()
	err = many(n, starters, func(i int) error {
		p := bare(a, b.env, w.code, w.want)
		if err := p.Prepare(ctx); err != nil {
			return err
		}
		all[i] = p
		return bounded(ctx, func(ctx context.Context) error {
			_, err := p.Call(ctx)
			return err
		})
	})
	if err != nil {
		return row, err
	}
	var pids []int
	for _, p := range all {
		pids = append(pids, p.cmd.Process.Pid)
	}
	if size, err = procfs.Memory(pids...); err != nil {
		return row, err
	}
	row.Bare = mebibytes(size) / float64(n)
	row.Ratio = row.Memory / row.Bare
	return row, nil
}

// many calls f with 0 to n-1, at most width at once.
func many(n, width int, f func(int) error) error {
	errs := make([]error, n)
	gate := make(chan struct{}, width)
	var wait sync.WaitGroup
	for i := range n {
		gate <- struct{}{}
		wait.Go(func() {
			defer func() { <-gate }()
			errs[i] = f(i)
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

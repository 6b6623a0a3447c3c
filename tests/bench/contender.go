package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A contender answers one kind of call in one way: an interpreter, a jail
// around it, a peer, or a server that is asked over MCP.
type contender interface {
	// Name is the contender's row in the table.
	Name() string
	// Prepare makes what is made once: a server, a session, a root file
	// system. An error is the reason for a gap in the table.
	Prepare(ctx context.Context) error
	// Call makes one call, checks its answer, and returns the time from
	// request to answer.
	Call(ctx context.Context) (time.Duration, error)
	// CPU is the processor time of a call, of everything that was started
	// for it: a mean. It may make calls of its own to find out.
	CPU(ctx context.Context) (time.Duration, error)
	// Close ends what Prepare made.
	Close() error
}

// settler is a contender that works after its answer: it ends a sandbox or fills
// a pool. The next contender's turn starts when Settle returns, so that this work
// does not slow the next contender.
type settler interface {
	Settle(ctx context.Context)
}

// weigher is a contender that can measure the memory of one of its sandboxes or
// interpreters.
type weigher interface {
	// Memory is the proportional set size, in bytes.
	Memory(ctx context.Context) (int64, error)
}

// callLimit is how long one call or one preparation may take.
const callLimit = 20 * time.Second

// warmUps is the number of calls before the first that counts.
const warmUps = 2

// An entry is a contender's part in a group.
type entry struct {
	contender
	batch    int  // calls a turn; 0 is 1. For calls too short to stand alone.
	every    int  // rounds between two turns; 0 is 1. For calls that take long.
	optional bool // a gap is no failure: the peers
}

// A group is a set of contenders that answer the same request and are
// measured in turn.
type group struct {
	name   string // as --only takes it
	title  string
	base   string // the contender that ratios refer to
	rounds int
	budget time.Duration // no round starts after it
	weigh  bool
	list   []entry
}

// run measures the group: each round gives every contender its turn. Progress
// goes to say.
func (g group) run(ctx context.Context, say func(format string, a ...any)) (section, error) {
	result := section{Name: g.name, Title: g.title, Base: g.base}
	all := make([]*series, len(g.list))
	var failed error
	gap := func(i int, err error) {
		all[i].Gap = err.Error()
		say("  %s: %v", all[i].Name, err)
		if !g.list[i].optional {
			failed = errors.Join(failed, fmt.Errorf("%s, %s: %w", g.name, all[i].Name, err))
		}
	}
	say("%s", g.title)
	for i, e := range g.list {
		all[i] = &series{Name: e.Name()}
		if err := bounded(ctx, e.Prepare); err != nil {
			gap(i, err)
			continue
		}
		defer e.Close()
		for range warmUps {
			if _, err := turn(ctx, entry{contender: e.contender}); err != nil {
				gap(i, err)
				break
			}
		}
	}
	end := time.Now().Add(g.budget)
	for round := range g.rounds {
		if time.Now().After(end) || ctx.Err() != nil {
			break
		}
		for i, e := range g.list {
			var times []time.Duration
			if all[i].Gap == "" && (e.every == 0 || round%e.every == 0) {
				var err error
				if times, err = turn(ctx, e); err != nil {
					gap(i, err)
				}
			}
			all[i].Rounds = append(all[i].Rounds, times)
		}
	}
	for i, e := range g.list {
		if all[i].Gap != "" {
			continue
		}
		err := bounded(ctx, func(ctx context.Context) (err error) {
			all[i].CPU, err = e.CPU(ctx)
			return err
		})
		if err != nil {
			gap(i, err)
			continue
		}
		if w, ok := e.contender.(weigher); ok && g.weigh {
			err := bounded(ctx, func(ctx context.Context) (err error) {
				all[i].Memory, err = w.Memory(ctx)
				return err
			})
			if err != nil {
				gap(i, err)
			}
		}
	}
	result.Rows = rows(all, g.base)
	return result, errors.Join(failed, ctx.Err())
}

// turn is a contender's turn: its batch of calls, and its rest.
func turn(ctx context.Context, e entry) ([]time.Duration, error) {
	times := make([]time.Duration, 0, max(1, e.batch))
	for range max(1, e.batch) {
		err := bounded(ctx, func(ctx context.Context) error {
			took, err := e.Call(ctx)
			times = append(times, took)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if s, ok := e.contender.(settler); ok {
		s.Settle(ctx)
	}
	return times, nil
}

// bounded gives f no more than [callLimit].
func bounded(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return f(ctx)
}

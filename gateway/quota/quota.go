// Package quota bounds what one principal has at a time.
//
// It promises that what is refused is refused at once, with an error that says what
// there is too much of, and that it tells nothing of other principals.
package quota

import (
	"context"
	"sync"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// counter counts something of each principal.
type counter struct {
	mu sync.Mutex
	of map[string]int64
}

// add adds n to a principal's count, unless that would be more than most. It returns
// what takes it away again, nil where it was not added, and the count before.
func (c *counter) add(principal string, n, most int64) (remove func(), before int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = c.of[principal]
	if before+n > most {
		return nil, before
	}
	c.of[principal] = before + n
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.of[principal] -= n; c.of[principal] == 0 {
			delete(c.of, principal)
		}
	}, before
}

// Calls returns an Executor that refuses a principal's calls beyond most, with a
// [*call.CallsError].
func Calls(next call.Executor, most func(principal string) int) call.Executor {
	return &calls{next, most, counter{of: map[string]int64{}}}
}

type calls struct {
	next    call.Executor
	most    func(string) int
	counter counter
}

func (c *calls) Execute(ctx context.Context, one call.Call) (call.Result, error) {
	most := c.most(one.Principal)
	remove, _ := c.counter.add(one.Principal, 1, int64(most))
	if remove == nil {
		return call.Result{}, &call.CallsError{Max: most}
	}
	defer remove()
	return c.next.Execute(ctx, one)
}

// Memory returns a Starter that refuses a principal's sandboxes beyond most bytes, as
// their limits say it, with a [*call.MemoryError]. A sandbox counts until nothing is left of
// it.
func Memory(next sandbox.Starter, most func(principal string) int64) sandbox.Starter {
	return &memory{next, most, counter{of: map[string]int64{}}}
}

type memory struct {
	next    sandbox.Starter
	most    func(string) int64
	counter counter
}

func (m *memory) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	most := m.most(spec.Principal)
	remove, used := m.counter.add(spec.Principal, spec.Limits.Memory, most)
	if remove == nil {
		return nil, &call.MemoryError{Used: used, Wanted: spec.Limits.Memory, Max: most}
	}
	box, err := m.next.Start(ctx, spec)
	if err != nil {
		remove()
		return nil, err
	}
	box.OnEnd(remove)
	return box, nil
}

package fair

import (
	"context"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

// Calls returns an Executor whose calls pass a gate: each has a slot while it runs, and
// while a sandbox is started for it. A call that waits for others of its session has
// none.
func Calls(next call.Executor, gate *Gate) call.Executor { return &calls{next, gate} }

type calls struct {
	next call.Executor
	gate *Gate
}

func (c *calls) Execute(ctx context.Context, one call.Call) (call.Result, error) {
	if one.Ticket != nil {
		select {
		case <-one.Ticket.Turn:
		case <-ctx.Done():
			return call.Result{}, ctx.Err()
		}
	}
	leave, err := c.gate.Enter(ctx, one.Principal)
	if err != nil {
		return call.Result{}, err
	}
	defer leave()
	return c.next.Execute(ctx, one)
}

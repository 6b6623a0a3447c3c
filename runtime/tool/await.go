package tool

import (
	"context"
	"errors"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// buildWait is how long a call waits for its environment to be built. Clients give up on a request
// after a minute, as MCP's SDKs do without progress.
const buildWait = 45 * time.Second

// await checks a call again when its environment has been built, or could not be. If that takes
// longer than buildWait, the call stays refused.
func (r *Run) await(ctx context.Context) {
	var building *buildingError
	if !errors.As(r.refusal, &building) {
		return
	}
	changed := make(chan struct{}, 1)
	stop := r.tool.Environments.Subscribe(func(_, _ *registry.Snapshot) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer stop()
	limit := time.NewTimer(buildWait)
	defer limit.Stop()
	r.call.Progress.Say("building " + r.call.Env.Name)
	// The first check is for a change between the last one and the subscription.
	for r.check(); errors.As(r.refusal, &building); r.check() {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-limit.C:
			r.check() // it says how long it has been
			return
		}
	}
}

package audit

import (
	"context"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

// UseTool implements [call.ToolObserver].
func (l *Log) UseTool(ctx context.Context, c call.Call, use call.ToolUse) {
	r := recordOf(c, call.Result{}, nil, use.Took)
	r.Event, r.Outcome = Used, use.Outcome
	r.Tool = &Tool{Server: plain(use.Server, maxName), Name: plain(use.Tool, maxName), ArgumentsHash: use.ArgumentsHash, Bytes: use.Bytes}
	l.record(ctx, r)
}

package audit

import (
	"context"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// UseTool implements [call.ToolObserver].
func (l *Log) UseTool(ctx context.Context, c call.Call, use call.ToolUse) {
	r := recordOf(c, call.Result{}, nil, use.Took)
	r.Event, r.Outcome = Used, use.Outcome
	r.Tool = &Tool{Server: hostile.Line(use.Server, maxName), Name: hostile.Line(use.Tool, maxName), ArgumentsHash: use.ArgumentsHash, Bytes: use.Bytes}
	l.record(ctx, r)
}

package call

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// Log returns an Executor that writes a line to log for each call when it has
// ended. Values that a client chose are bounded.
func Log(next Executor, log *slog.Logger) Executor { return &logged{next, log} }

type logged struct {
	next Executor
	log  *slog.Logger
}

func (l *logged) Answer(ctx context.Context, call Call) (Result, error) {
	began := time.Now()
	result, err := l.next.Answer(ctx, call)
	attributes := []any{
		slog.String("env", call.Env.Name),
		slog.String("session", call.Session),
		slog.String("outcome", Outcome(result, err)),
		slog.Int("exit_code", result.ExitCode),
		slog.Int64("duration_ms", time.Since(began).Milliseconds()),
		slog.Int("code_bytes", len(call.Code)),
		slog.Int("output_bytes", result.Stdout.Len()+result.Stderr.Len()),
	}
	attributes = append(attributes, call.Origin()...)
	var dead *sandbox.DeadError
	if errors.As(err, &dead) {
		l.log.LogAttrs(ctx, slog.LevelError, "sandbox died", slog.String("env", call.Env.Name), slog.String("session", call.Session), slog.String("reason", dead.Reason), slog.String("log", dead.Log))
	} else if err != nil {
		attributes = append(attributes, slog.String("reason", err.Error()))
	}
	l.log.InfoContext(ctx, "call", attributes...)
	return result, err
}

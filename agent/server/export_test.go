package server

import (
	"context"
	"io"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/attempt"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/process"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// SendAfterLimit gives code to an interpreter that a limit has just ended, before its end is noticed,
// and returns what the result says of a limit.
func SendAfterLimit(table *process.Table, spec interpreter.Spec) (*frame.Limit, error) {
	e := &executor{Server: &Server{table: table, spec: spec, log: io.Discard}}
	ctx, deadline := context.Background(), attempt.Deadline(spec.LoadTimeout())
	if err := e.load(ctx, deadline); err != nil {
		return nil, err
	}
	e.crossing.Store(&limitkeeper.Crossing{Limit: frame.Limit{Name: frame.Memory}})
	e.current.Kill()
	<-e.current.Done()
	_, err := e.send(ctx, &call{}, "1", deadline)
	if err == nil {
		err = e.kill()
	}
	return e.limit, err
}

package interactive

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/oneshot"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// notRun is the exit status of code that could not be run.
const notRun = 125

// code runs code as a call without a session does, with pipes for its streams.
func (v *Visits) code(r frame.Request, s *visit, spec interpreter.Spec) (*os.File, func() int, error) {
	files, ends, err := pipes()
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		interpreter.Blocking(file)
	}
	spec.Null, spec.Stdout, spec.Stderr, spec.Beside = files[0], files[1], files[2], true
	signals := make(chan os.Signal, 1)
	v.mu.Lock()
	s.signals = signals
	v.mu.Unlock()
	return nil, func() (status int) {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer closeAll(files[:])
			var err error
			if status, err = oneshot.Code(ctx, v.table, spec, bytes.NewReader(r.Contents), signals); err != nil && ctx.Err() == nil {
				status = notRun
				fmt.Fprintf(spec.Stderr, "nix-sandbox-agent: error: %v\n", err)
			}
		}()
		v.follow(r.ID, s, ends, ended, stop)
		return status
	}, nil
}

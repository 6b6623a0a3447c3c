package sandbox_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

func TestLimit_WaitsForTheEndOfAnotherSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine := &sandboxtest.Machine{}
		starter := sandbox.Limit(machine, 2)
		var boxes []sandbox.Sandbox
		start := func() error {
			box, err := starter.Start(t.Context(), sandbox.Spec{})
			boxes = append(boxes, box)
			return err
		}
		for range 2 {
			must.Do(t, start())
		}
		third := make(chan error, 1)
		go func() { third <- start() }()
		synctest.Wait()
		if n := machine.Started(); n != 2 {
			t.Fatalf("%d sandboxes were started, the limit is 2", n)
		}
		boxes[0].Kill()
		if err := <-third; err != nil {
			t.Error(err)
		}
		if _, most := machine.Live(); most != 2 {
			t.Errorf("%d sandboxes lived at once", most)
		}
	})
}

// A start that is given up, or that fails, takes no slot.
func TestLimit_FailedStartsTakeNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing := &sandboxtest.Machine{FailureRate: 1}
		starter := sandbox.Limit(failing, 1)
		for range 3 {
			var dead *sandbox.DeadError
			if _, err := starter.Start(t.Context(), sandbox.Spec{}); !errors.As(err, &dead) {
				t.Errorf("error %v", err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		starter = sandbox.Limit(&sandboxtest.Machine{}, 1)
		if _, err := starter.Start(ctx, sandbox.Spec{}); err != nil {
			t.Fatal(err)
		}
		for range 3 { // the first waits, the others come too late
			if _, err := starter.Start(ctx, sandbox.Spec{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		}
	})
}

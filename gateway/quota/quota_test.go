package quota

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

// sleeper is an Executor whose calls take a second.
type sleeper struct{}

func (sleeper) Execute(context.Context, call.Call) (call.Result, error) {
	time.Sleep(time.Second)
	return call.Result{}, nil
}

func TestCalls_AreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := Calls(sleeper{}, func(principal string) int { return len(principal) })
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if _, err := calls.Execute(t.Context(), call.Call{Principal: "bob"}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		var full *call.CallsError
		if _, err := calls.Execute(t.Context(), call.Call{Principal: "bob"}); !errors.As(err, &full) || full.Max != 3 {
			t.Errorf("the fourth call: %v", err)
		}
		if _, err := calls.Execute(t.Context(), call.Call{Principal: "alice"}); err != nil {
			t.Errorf("another principal's call: %v", err)
		}
		all.Wait()
		if _, err := calls.Execute(t.Context(), call.Call{Principal: "bob"}); err != nil {
			t.Errorf("a call after them: %v", err)
		}
	})
}

func TestMemory_IsBounded(t *testing.T) {
	machine := &sandboxtest.Machine{}
	defer machine.Close(0)
	starter := Memory(machine, func(string) int64 { return 100 })
	start := func(principal string, bytes int64) (sandbox.Sandbox, error) {
		return starter.Start(t.Context(), sandbox.Spec{Principal: principal, Limits: sandbox.Limits{Memory: bytes}})
	}
	first := must.Get(start("alice", 60))(t)
	must.Get(start("alice", 40))(t)
	var full *call.MemoryError
	if _, err := start("alice", 1); !errors.As(err, &full) || *full != (call.MemoryError{Used: 100, Wanted: 1, Max: 100}) {
		t.Errorf("beyond the bound: %v", err)
	}
	must.Get(start("bob", 100))(t)
	ended := make(chan struct{})
	first.OnEnd(func() { close(ended) })
	first.Kill()
	<-ended
	// What runs at the end of a sandbox runs in no order.
	for {
		if _, err := start("alice", 60); err == nil {
			break
		}
	}
	// A start that fails takes nothing.
	machine.SetFailureRate(1)
	if _, err := start("carol", 100); err == nil {
		t.Fatal("the start did not fail")
	}
	machine.SetFailureRate(0)
	must.Get(start("carol", 100))(t)
}

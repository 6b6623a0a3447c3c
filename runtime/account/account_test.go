package account

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

// quotas is a Book whose principals have the same quota.
func quotas(q registry.Quota) *Book { return NewBook(func(string) registry.Quota { return q }, 8) }

// Calls and reads beyond the quota are refused, and those of others are not.
func TestBook_AdmitsCalls(t *testing.T) {
	b := quotas(registry.Quota{Calls: 3})
	var releases []func()
	for range 3 {
		releases = append(releases, must.Get(b.Admit("bob", 0))(t))
	}
	var full *call.CallsError
	if _, err := b.Admit("bob", 0); !errors.As(err, &full) || full.Max != 3 {
		t.Errorf("the fourth call: %v", err)
	}
	must.Get(b.Admit("alice", 0))(t)
	for _, release := range releases {
		release()
		release() // does nothing
	}
	must.Get(b.Admit("bob", 0))(t)
}

func TestBook_BoundsTheMemoryOfSandboxes(t *testing.T) {
	machine := &sandboxtest.Machine{}
	defer machine.Close(0)
	starter := quotas(registry.Quota{MemoryMB: 100}).Starter(machine)
	start := func(principal string, mb int64) (sandbox.Sandbox, error) {
		return starter.Start(t.Context(), sandbox.Spec{Principal: principal, Limits: sandbox.Limits{Memory: mb << 20}})
	}
	first := must.Get(start("alice", 60))(t)
	must.Get(start("alice", 40))(t)
	var full *call.MemoryError
	if _, err := start("alice", 1); !errors.As(err, &full) || *full != (call.MemoryError{Used: 100 << 20, Wanted: 1 << 20, Max: 100 << 20}) {
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

// A principal may add a burst of records, and waits for more; another one does not wait. The rates
// of many principals are forgotten.
func TestBook_BoundsRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := quotas(registry.Quota{})
		began := time.Now()
		b.Record(t.Context(), "greedy", recordsBurst)
		b.Record(t.Context(), "modest", recordsBurst)
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a burst waits for %v", waited)
		}
		b.Record(t.Context(), "greedy", 10*recordsPerSecond)
		if waited := time.Since(began); waited != 10*time.Second {
			t.Errorf("what is more waits for %v", waited)
		}
		gone, stop := context.WithCancel(t.Context())
		stop()
		b.Record(gone, "greedy", 10*recordsPerSecond)
		if waited := time.Since(began); waited != 10*time.Second {
			t.Errorf("what is given up waits: %v", waited)
		}
		b.Record(t.Context(), "greedy", 1)
		if waited := time.Since(began); waited < 20*time.Second {
			t.Errorf("what is given up is free: the next record came after %v", waited)
		}
		for i := range 2 * maxRecorders {
			b.Record(t.Context(), fmt.Sprint(i), i%2)
		}
		if n := len(b.records); n > maxRecorders {
			t.Errorf("%d rates are remembered", n)
		}
	})
}

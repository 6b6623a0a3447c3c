package server_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

func plantState(t *testing.T, a *Agent) {
	t.Helper()
	must.Do(t, os.WriteFile(filepath.Join(a.Root, "file"), []byte("kept"), 0o644))
}

func checkState(t *testing.T, a *Agent) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(a.Root, "file")); string(got) != "kept" {
		t.Errorf("file of the workspace: %q, %v", got, err)
	}
}

// Programs share a pipe, and with it whether it blocks; what one of them
// leaves behind is no matter of the next call's.
func TestPipesBlockAgain(t *testing.T) {
	t.Parallel()
	a := Start(t, "python").Warm()
	const show = "print(os.get_blocking(1), os.get_blocking(2))"
	if got := a.Run("import os\nos.set_blocking(1, False); os.set_blocking(2, False)\n" + show); got.Stdout != "False False\n" {
		t.Fatalf("%+v", got)
	}
	if got := a.Run(show); got.Stdout != "True True\n" {
		t.Errorf("%+v", got)
	}
}

// What a child of an earlier call prints comes with a later call, once.
func TestOutput_OfEarlierCallsComesOnce(t *testing.T) {
	t.Parallel()
	a := Start(t, "bash")
	if got := a.Run("(until [ -e go ]; do sleep 0.01; done; echo late; touch gone) & echo now"); got.Stdout != "now\n" {
		t.Errorf("stdout %q", got.Stdout)
	}
	must.Do(t, os.WriteFile(filepath.Join(a.Root, "go"), nil, 0o644))
	patience.Until(t, "the child of the first call prints", func() bool {
		_, err := os.Stat(filepath.Join(a.Root, "gone"))
		return err == nil
	})
	if got := a.Run("echo next"); got.Stdout != "late\nnext\n" {
		t.Errorf("stdout %q", got.Stdout)
	}
	if got := a.Run("echo last"); got.Stdout != "last\n" {
		t.Errorf("stdout %q", got.Stdout)
	}
}

// A call does not wait for children that hold its pipes.
func TestChildrenThatHoldThePipes(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*frame.Request){Ephemeral, func(*frame.Request) {}} {
		a := Start(t, "bash")
		begin := time.Now()
		if got := a.Run("yes & sleep 99 & echo hi", change); got.Outcome != frame.OutcomeOK {
			t.Errorf("%+v", got.Reply)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("answered after %v", took)
		}
		a.Run("kill $(jobs -p)")
	}
}

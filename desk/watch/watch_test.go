package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/status"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// The command top reads a status as a snapshot of the gateway: each field is one of that.
func TestStatus_IsASnapshot(t *testing.T) {
	w := New()
	of := func(env, session string) call.Call {
		return call.Call{Env: registry.Environment{Name: env}, Session: session}
	}
	w.Begin(of("bash", "s"))
	w.Begin(of("python", ""))(call.Result{Result: sandbox.Result{Outcome: "ok"}}, nil)
	w.Begin(of("python", ""))(call.Result{Result: sandbox.Result{Outcome: "ok", ExitCode: 1}}, nil)
	w.Begin(of("node", ""))(call.Result{}, errors.New("no room"))
	live := []session.Live{{Key: call.Key{ID: "s"}, Environments: "bash", Started: time.Now(), Used: time.Now(), MemoryMB: 512}}
	text := must.Get(json.Marshal(w.Status("1", []string{"bash"}, live)))(t)
	var got status.Snapshot
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	must.Do(t, decoder.Decode(&got))
	if len(got.Running) != 1 || got.Running[0].Session != "s" || len(got.Recent) != 3 || len(got.Sessions) != 1 || got.Memory.Server == 0 {
		t.Errorf("%s", text)
	}
	var outcomes []string
	for _, one := range got.Recent {
		outcomes = append(outcomes, one.Env+" "+one.Outcome+" "+one.Reason)
	}
	if fmt.Sprint(outcomes) != "[node refused no room python failed  python ok ]" {
		t.Errorf("%q", outcomes)
	}
	if p := got.Principals[0]; p.Calls != 3 || p.Failed != 1 || p.Refused != 1 || p.Running != 1 || p.Sessions != 1 || p.MemoryMB != 512 {
		t.Errorf("%+v", p)
	}
}

// However many calls and principals there are, so many are kept.
func TestCalls_AreBounded(t *testing.T) {
	w := New()
	for i := range 2 * maxPrincipals {
		w.Begin(call.Call{Principal: fmt.Sprint(i)})(call.Result{}, nil)
		w.Begin(call.Call{Principal: fmt.Sprint(i)})
	}
	principals, running, recent := w.Now()
	if len(principals) != maxPrincipals+1 || len(running) != maxRunning || len(recent) != maxRecent {
		t.Errorf("%d principals, %d run, %d have ended", len(principals), len(running), len(recent))
	}
}

// What a server spends on each call to be shown.
func BenchmarkCall(b *testing.B) {
	w := New()
	for b.Loop() {
		w.Begin(call.Call{Session: "s"})(call.Result{}, nil)
	}
}

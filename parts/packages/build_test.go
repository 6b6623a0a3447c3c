package packages

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// environment is one that a call names with a package, before it is built; its
// artifact is what a builder makes of it here.
func environment(t *testing.T) registry.Environment {
	t.Helper()
	folder := t.TempDir()
	for _, program := range []string{"run", "session-run"} {
		must.Do(t, os.MkdirAll(filepath.Join(folder, "bin"), 0o755))
		must.Do(t, os.WriteFile(filepath.Join(folder, "bin", program), nil, 0o755))
	}
	fields := map[string]any{"schema": 1, "name": "python", "backend": "jail", "packages_on_demand": "all"}
	for key, value := range mcptest.Settings(nil)["defaults"].(map[string]any) {
		if _, has := fields[key]; !has {
			fields[key] = value
		}
	}
	must.Do(t, os.WriteFile(filepath.Join(folder, "metadata.json"), must.Get(json.Marshal(fields))(t), 0o644))
	return registry.Environment{
		Name: "python+pandas", Timeout: 30 * time.Second, OnDemand: &registry.OnDemand{All: true, Folder: folder},
		Base: "python", Added: []string{"pandas"},
	}
}

// next is an executor that answers with the environment of the call.
type next struct{ got []registry.Environment }

func (n *next) Answer(_ context.Context, c call.Call) (call.Result, error) {
	n.got = append(n.got, c.Env)
	return call.Result{}, nil
}

// rig is an executor with a builder of the test.
type rig struct {
	*Executor
	next   next
	orders []order.Order
}

func newRig(t *testing.T, build func(ctx context.Context, o order.Order, folder string, progress func(done, total int)) error) *rig {
	r := &rig{}
	folder := t.TempDir()
	r.Executor = NewExecutor(&r.next, Options{
		Folder: folder, Bounds: order.Bounds{MaxBuilds: 2}, Log: slog.New(slog.DiscardHandler),
		Place: func(ctx context.Context, o order.Order, progress func(done, total int)) (order.Report, error) {
			r.orders = append(r.orders, o)
			at := filepath.Join(folder, o.Key)
			must.Do(t, os.MkdirAll(at, 0o755))
			return order.Report{}, build(ctx, o, at, progress)
		},
	})
	return r
}

func TestExecute_BuildsOnceAndRuns(t *testing.T) {
	env := environment(t)
	r := newRig(t, func(_ context.Context, o order.Order, folder string, _ func(int, int)) error {
		return os.Symlink(env.OnDemand.Folder, filepath.Join(folder, order.ResultLink))
	})
	for range 2 {
		if _, err := r.Answer(t.Context(), call.Call{Env: env, Principal: "ada"}); err != nil {
			t.Fatal(err)
		}
	}
	want := []order.Order{{
		Kind: order.Environment, Principal: digest("ada"), Key: Key(env, nameOf(env)),
		Base: "python", Recipe: recipe(env), Packages: []string{"pandas"}, Bounds: order.Bounds{MaxBuilds: 2},
	}}
	if diff := cmp.Diff(want, r.orders); diff != "" {
		t.Error(diff)
	}
	if len(r.next.got) != 2 || r.next.got[0].SessionExec == "" || r.next.got[0].Name != "python+pandas" {
		t.Errorf("ran in %+v", r.next.got)
	}
	if text, err := os.ReadFile(filepath.Join(r.Folder, r.orders[0].Key, order.UsedFile)); string(text) != digest("ada")+"\n" {
		t.Errorf("its use is not noted: %q, %v", text, err)
	}
	// The control: another environment is nobody's business here.
	if _, err := r.Answer(t.Context(), call.Call{Env: registry.Environment{Name: "python"}}); err != nil || len(r.orders) != 1 {
		t.Errorf("%v, ordered %v", err, r.orders)
	}
}

func TestExecute_WaitsAsLongAsTheCallMay(t *testing.T) {
	env := environment(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(ctx context.Context, _ order.Order, _ string, progress func(int, int)) error {
			progress(3, 17)
			<-ctx.Done()
			return ctx.Err()
		})
		var progress sandbox.Progress
		began := time.Now()
		_, err := r.Answer(t.Context(), call.Call{Env: env, Timeout: 5 * time.Second, Progress: &progress})
		var building *BuildingError
		if !errors.As(err, &building) || *building != (BuildingError{Env: "python+pandas", Done: 3, Total: 17}) || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, _, line := progress.Now(0); line != "building python+pandas: 3 of 17" {
			t.Errorf("progress %.200q", line)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Answer(ctx, call.Call{Env: env}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the call that was cancelled: %v", err)
		}
		if len(r.next.got) != 0 {
			t.Errorf("ran in %+v", r.next.got)
		}
	})
}

func TestExecute_SaysWhyNothingWasBuilt(t *testing.T) {
	env := environment(t)
	synctest.Test(t, func(t *testing.T) {
		failure := order.Failure{Kind: order.Refused, Package: "pandas", Text: "it is marked as broken"}
		r := newRig(t, func(context.Context, order.Order, string, func(int, int)) error { return &failure })
		want := &BuildError{Env: env, Kind: order.Refused, Package: "pandas", Reason: "it is marked as broken"}
		for range 3 {
			_, err := r.Answer(t.Context(), call.Call{Env: env})
			if diff := cmp.Diff(error(want), err); diff != "" {
				t.Error(diff)
			}
		}
		if len(r.orders) != 1 {
			t.Errorf("ordered %d times", len(r.orders))
		}
		// It may be another time now.
		time.Sleep(2 * retryAfter)
		if _, err := r.Answer(t.Context(), call.Call{Env: env}); err == nil || len(r.orders) != 2 {
			t.Errorf("after a while: %v, ordered %d times", err, len(r.orders))
		}
	})
}

// An artifact that cannot be used is a failure, and not something to wait for.
func TestExecute_RefusesABrokenArtifact(t *testing.T) {
	env := environment(t)
	must.Do(t, os.Remove(filepath.Join(env.OnDemand.Folder, "bin", "session-run")))
	r := newRig(t, func(_ context.Context, _ order.Order, folder string, _ func(int, int)) error {
		return os.Symlink(env.OnDemand.Folder, filepath.Join(folder, order.ResultLink))
	})
	_, err := r.Answer(t.Context(), call.Call{Env: env})
	var failed *BuildError
	if !errors.As(err, &failed) || failed.Kind != order.Failed || !strings.Contains(failed.Reason, "session_exec") {
		t.Errorf("%v", err)
	}
}

func TestExecute_HasNoBuilder(t *testing.T) {
	env := environment(t)
	for _, place := range []func(context.Context, order.Order, func(int, int)) (order.Report, error){
		nil,
		func(context.Context, order.Order, func(int, int)) (order.Report, error) {
			return order.Report{}, errors.New("gone")
		},
	} {
		e := NewExecutor(&next{}, Options{Folder: t.TempDir(), Log: slog.New(slog.DiscardHandler), Place: place})
		_, err := e.Answer(t.Context(), call.Call{Env: env, Timeout: time.Minute})
		var failed *BuildError
		if !errors.As(err, &failed) || failed.Kind != NoBuild {
			t.Errorf("%v", err)
		}
	}
}

// A user who did not decide may not have been asked: a model that hears so asks for the right thing.
func TestBuildError_OfAUserWhoDidNotDecide(t *testing.T) {
	err := &BuildError{Kind: Unasked, Env: registry.Environment{Name: "python+six", Base: "python"}}
	want := `the user has to allow building env "python+six", and could not be asked or did not answer: do without, or ask the user to run nix-sandbox-mcp approve, or to set packages_ask = false in [environments.python]`
	if got := err.Error(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
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

// rig is an executor whose builder does what the test says for each key.
type rig struct {
	*Executor
	folder string
	next   next
	asked  []string
}

func newRig(t *testing.T, build func(folder string)) *rig {
	r := &rig{folder: t.TempDir()}
	r.Executor = NewExecutor(&r.next, Options{Folder: r.folder, Log: slog.New(slog.DiscardHandler), Ask: func(key string) error {
		r.asked = append(r.asked, key)
		build(filepath.Join(r.folder, key))
		return nil
	}})
	return r
}

func put(t *testing.T, folder, file, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o644))
}

func TestExecute_BuildsOnceAndRuns(t *testing.T) {
	env := environment(t)
	r := newRig(t, func(folder string) {
		var request Request
		must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(folder, RequestFile)))(t), &request))
		if diff := cmp.Diff(Request{Base: "python", Recipe: recipe(env), Packages: []string{"pandas"}}, request); diff != "" {
			t.Error(diff)
		}
		must.Do(t, os.Symlink(env.OnDemand.Folder, filepath.Join(folder, ResultLink)))
	})
	for range 2 {
		if _, err := r.Answer(t.Context(), call.Call{Env: env}); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.asked) != 1 || len(r.next.got) != 2 || r.next.got[0].SessionExec == "" || r.next.got[0].Name != "python+pandas" {
		t.Errorf("asked for %v, ran in %+v", r.asked, r.next.got)
	}
	if _, err := os.Stat(filepath.Join(r.folder, r.asked[0], UsedFile)); err != nil {
		t.Errorf("its use is not noted: %v", err)
	}
	// The control: another environment is nobody's business here.
	if _, err := r.Answer(t.Context(), call.Call{Env: registry.Environment{Name: "python"}}); err != nil || len(r.asked) != 1 {
		t.Errorf("%v, asked for %v", err, r.asked)
	}
}

func TestExecute_WaitsAsLongAsTheCallMay(t *testing.T) {
	env := environment(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(folder string) { put(t, folder, BuildingFile, "1 3 17\n") })
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
	for text, want := range map[string]BuildError{
		"absent pandas\n":                         {Kind: Absent, Package: "pandas"},
		"refused pandas it is marked as broken\n": {Kind: Refused, Package: "pandas", Reason: "it is marked as broken"},
		"large 5000000000\n":                      {Kind: TooLarge, Size: 5e9},
		"slow\n":                                  {Kind: TooSlow},
		"crowded\n":                               {Kind: Crowded},
		"failed\nerror: no\n\xff\n":               {Kind: Failed, Reason: "error: no\n\uFFFD"},
		"":                                        {Kind: Failed},
		strings.Repeat("x", 100) + "\n":           {Kind: Failed},
		"large 99999999999999999999999999999999999\n": {Kind: TooLarge, Size: 1<<63 - 1},
	} {
		want.Env = env
		r := newRig(t, func(folder string) { put(t, folder, FailedFile, text) })
		for range 3 {
			_, err := r.Answer(t.Context(), call.Call{Env: env})
			var failed *BuildError
			if !errors.As(err, &failed) {
				t.Fatalf("%q: %v", text, err)
			}
			if diff := cmp.Diff(want, *failed); diff != "" {
				t.Errorf("%q: %s", text, diff)
			}
		}
		if len(r.asked) != 1 {
			t.Errorf("%q: asked %d times", text, len(r.asked))
		}
		// It may be another time now.
		key := Key(env, nameOf(env))
		old := time.Now().Add(-2 * retryAfter)
		must.Do(t, os.Chtimes(filepath.Join(r.folder, key, FailedFile), old, old))
		if _, err := r.Answer(t.Context(), call.Call{Env: env}); err == nil || len(r.asked) != 2 {
			t.Errorf("%q, after a while: %v, asked %d times", text, err, len(r.asked))
		}
	}
}

// An artifact that cannot be used is a failure, and not something to wait for.
func TestExecute_RefusesABrokenArtifact(t *testing.T) {
	env := environment(t)
	must.Do(t, os.Remove(filepath.Join(env.OnDemand.Folder, "bin", "session-run")))
	r := newRig(t, func(folder string) {
		must.Do(t, os.Symlink(env.OnDemand.Folder, filepath.Join(folder, ResultLink)))
	})
	_, err := r.Answer(t.Context(), call.Call{Env: env})
	var failed *BuildError
	if !errors.As(err, &failed) || failed.Kind != Failed || !strings.Contains(failed.Reason, "session_exec") {
		t.Errorf("%v", err)
	}
}

func TestExecute_HasNoBuilder(t *testing.T) {
	env := environment(t)
	for _, ask := range []func(string) error{nil, func(string) error { return errors.New("gone") }} {
		e := NewExecutor(&next{}, Options{Folder: t.TempDir(), Log: slog.New(slog.DiscardHandler), Ask: ask})
		_, err := e.Answer(t.Context(), call.Call{Env: env})
		var failed *BuildError
		if !errors.As(err, &failed) || failed.Kind != NoBuild {
			t.Errorf("%v", err)
		}
	}
}

// A call may name an environment again at the moment when it is given up, which makes
// one attempt to write the request fail.
func TestExecute_AsksWhileItIsGivenUp(t *testing.T) {
	env := environment(t)
	r := newRig(t, func(string) {})
	for range 100 {
		removed := make(chan error, 1)
		go func() {
			var err error
			for range askAttempts - 1 {
				err = errors.Join(err, Remove(r.folder, "key"))
			}
			removed <- err
		}()
		if err := r.order(env, "key"); err != nil {
			t.Error(err)
		}
		must.Do(t, <-removed)
	}
}

// One principal's builds leave turns to another, and those that no call waits for any more
// are not begun.
func TestExecute_BuildsInTurns(t *testing.T) {
	base := environment(t)
	synctest.Test(t, func(t *testing.T) {
		var order []string
		r := newRig(t, func(folder string) {
			var request Request
			must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(folder, RequestFile)))(t), &request))
			order = append(order, request.Packages[0])
			time.AfterFunc(time.Second, func() { put(t, folder, FailedFile, "slow\n") })
		})
		r.Turn = account.NewBook(nil, 1, 1).Build
		ctx, hangUp := context.WithCancel(t.Context())
		var all sync.WaitGroup
		call := func(ctx context.Context, principal, name string) {
			env := base
			env.Base, env.Added = "python", []string{name}
			all.Go(func() { _, _ = r.Answer(ctx, call.Call{Principal: principal, Env: env}) })
			synctest.Wait()
		}
		for i := range 20 {
			call(ctx, "alice", fmt.Sprintf("a%d", i))
		}
		call(t.Context(), "bob", "b")
		call(t.Context(), "alice", "last")
		time.Sleep(1500 * time.Millisecond)
		hangUp()
		all.Wait()
		time.Sleep(time.Minute)
		if at := slices.Index(order, "b"); at < 0 || at > 2 {
			t.Errorf("bob's is built after %d others: %q", at, order)
		}
		if len(order) > 4 {
			t.Errorf("%d are built, of which calls wait for three: %q", len(order), order)
		}
		if folders := must.Get(os.ReadDir(r.folder))(t); len(folders) != len(order) || len(r.builds) != 0 {
			t.Errorf("%d folders and %d builds are left", len(folders), len(r.builds))
		}
	})
}

// A user who did not decide may not have been asked: a model that hears so asks for the right thing.
func TestBuildError_OfAUserWhoDidNotDecide(t *testing.T) {
	err := &BuildError{Kind: Unasked, Env: registry.Environment{Name: "python+six", Base: "python"}}
	want := `the user has to allow building env "python+six", and could not be asked or did not answer: do without, or ask the user to run nix-sandbox-mcp approve, or to set packages_ask = false in [environments.python]`
	if got := err.Error(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

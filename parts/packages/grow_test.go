package packages_test

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/packages"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

// fixture is a Manager whose sessions grow, over a machine of this process.
type fixture struct {
	*session.Manager
	t       *testing.T
	machine *sandboxtest.Machine
}

// inBubble runs a test with a Manager of at most max sandboxes.
func inBubble(t *testing.T, max int, test func(*testing.T, *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		machine := &sandboxtest.Machine{StartTime: time.Second}
		spec := func(c call.Call) sandbox.Spec { return sandbox.Spec{Name: c.Env.Name, OutputBytes: 1000} }
		f := &fixture{session.New(session.Options{
			Starter: machine, Spec: spec, Limits: session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: max},
			Parts: []session.Part{packages.Grow{}}, Log: slog.New(slog.DiscardHandler),
		}), t, machine}
		test(t, f)
		f.Close()
		synctest.Wait()
		if live, _ := machine.Live(); len(live) > 0 || machine.Workspaces() > 0 {
			t.Errorf("%d sandboxes and %d workspaces outlive the sessions", len(live), machine.Workspaces())
		}
	})
}

func environment(name string) registry.Environment {
	return registry.Environment{Name: name, Timeout: time.Minute, OutputBytes: 1000}
}

// with is environment one with packages that a call added.
func with(added ...string) registry.Environment {
	env := environment("one")
	if len(added) > 0 {
		env.Base, env.Added = "one", added
		env.Name = packages.Name{Base: "one", Packages: added}.String()
	}
	return env
}

// runIn runs code in session s of an environment.
func (f *fixture) runIn(env registry.Environment, code string) (string, call.Result, error) {
	result, err := f.Answer(f.t.Context(), call.Call{Session: "s", Env: env, Code: code})
	return result.Stdout.Head, result, err
}

func hasGrown(result call.Result) bool { return call.Find[call.Grown](result.Notes) != nil }

// A session goes on with its files where a call adds packages, and in the larger
// environment where a later call names fewer.
func TestSession_GrowsWithItsFiles(t *testing.T) {
	for _, max := range []int{64, 1} { // one of the two sandboxes counts
		inBubble(t, max, func(t *testing.T, f *fixture) {
			steps := []struct {
				env   registry.Environment
				code  string
				want  string
				grown bool
			}{
				{with(), "x=1; echo text > file", "", false},
				{with("pandas"), "echo none$x; cat file", "none\ntext\n", true},
				{with("pandas"), "x=2; echo more > other", "", false},
				{with(), "echo $x; cat other", "2\nmore\n", false},
				{with("pandas", "torch"), "echo none$x; cat file; cat other", "none\ntext\nmore\n", true},
				{with("torch"), "cat file", "text\n", false},
			}
			for i, step := range steps {
				out, result, err := f.runIn(step.env, step.code)
				if err != nil || out != step.want || hasGrown(result) != step.grown || result.Restart != nil {
					t.Errorf("step %d: %q, grown %v, %v, %+v; want %q, %v", i, out, hasGrown(result), err, result.Restart, step.want, step.grown)
				}
			}
			if live, _ := f.machine.Live(); len(live) != 1 {
				t.Errorf("%d sandboxes live", len(live))
			}
			if has := f.Environments(call.Key{ID: "s"}); len(has) != 1 || has[0].Name != "one+pandas+torch" {
				t.Errorf("it has %+v", has)
			}
			// A control: it has not become a session of every environment.
			_, _, err := f.runIn(environment("two"), "echo")
			var other *call.OtherEnvError
			if !errors.As(err, &other) {
				t.Errorf("another environment: %v", err)
			}
		})
	}
}

// A sandbox that can get packages goes on, with its variables, and no other one is started.
func TestSession_GrowsAsItIs(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, f *fixture) {
		f.machine.Grows = true
		for i, step := range []struct {
			env        registry.Environment
			code, want string
		}{
			{with(), "x=1", ""},
			{with("pandas"), "echo $x", "1\n"},
			{with("pandas", "torch"), "echo $x; x=2", "1\n"},
			{with("torch"), "echo $x", "2\n"},
		} {
			if out, result, err := f.runIn(step.env, step.code); err != nil || out != step.want || len(result.Notes) > 0 || result.Restart != nil {
				t.Errorf("step %d: %q, %+v, %v", i, out, result, err)
			}
		}
		if has := f.Environments(call.Key{ID: "s"}); len(has) != 1 || has[0].Name != "one+pandas+torch" {
			t.Errorf("it has %+v", has)
		}
		if _, most := f.machine.Live(); most != 1 {
			t.Errorf("%d sandboxes were there at once", most)
		}
	})
}

// A session whose larger sandbox does not start, or takes no files, goes on as it was.
func TestSession_StaysWhereItCannotGrow(t *testing.T) {
	inBubble(t, 64, func(t *testing.T, f *fixture) {
		if _, _, err := f.runIn(with(), "x=1"); err != nil {
			t.Fatal(err)
		}
		f.machine.FailureRate, f.machine.Rand = 1, rand.New(rand.NewPCG(1, 1))
		if _, _, err := f.runIn(with("pandas"), "echo $x"); err == nil {
			t.Error("a sandbox that did not start runs code")
		}
		f.machine.FailureRate = 0
		if out, result, err := f.runIn(with(), "echo $x"); err != nil || out != "1\n" {
			t.Errorf("%q, %+v, %v", out, result, err)
		}
	})
}

// Where sessions share files, the sandbox with further packages takes the place of
// the one without, and the others stay.
func TestSession_GrowsOnASharedWorkspace(t *testing.T) {
	inBubble(t, 64, func(t *testing.T, f *fixture) {
		f.Workspaces = f.machine
		for i, step := range []struct {
			env        registry.Environment
			code, want string
			grown      bool
		}{
			{with(), "x=1; echo text > file", "", false},
			{environment("two"), "y=2", "", false},
			{with("pandas"), "echo none$x; cat file", "none\ntext\n", true},
			{environment("two"), "echo $y", "2\n", false},
		} {
			out, result, err := f.runIn(step.env, step.code)
			if err != nil || out != step.want || hasGrown(result) != step.grown {
				t.Errorf("step %d: %q, grown %v, %v", i, out, hasGrown(result), err)
			}
		}
		if live, _ := f.machine.Live(); len(live) != 2 {
			t.Errorf("%d sandboxes live", len(live))
		}
	})
}

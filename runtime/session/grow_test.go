package session

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// with is environment one with packages that a call added.
func with(packages ...string) registry.Environment {
	env := environment("one")
	if len(packages) > 0 {
		env.Derived = &registry.Derived{Base: "one", Packages: packages}
		env.Name = env.Derived.String()
	}
	return env
}

// runIn runs code in session s of an environment.
func (f *fixture) runIn(env registry.Environment, code string) (string, call.Result, error) {
	result, err := f.Execute(f.t.Context(), call.Call{Session: "s", Env: env, Code: code})
	return result.Stdout.Head, result, err
}

// A session goes on with its files where a call adds packages, and in the larger
// environment where a later call names fewer.
func TestSession_GrowsWithItsFiles(t *testing.T) {
	for _, max := range []int{64, 1} { // one of the two sandboxes counts
		inBubble(t, Limits{Max: max}, func(t *testing.T, f *fixture) {
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
				if err != nil || out != step.want || result.Grown != step.grown || result.Restart != nil {
					t.Errorf("step %d: %q, grown %v, %v, %+v; want %q, %v", i, out, result.Grown, err, result.Restart, step.want, step.grown)
				}
			}
			if live, _ := f.machine.Live(); len(live) != 1 {
				t.Errorf("%d sandboxes live", len(live))
			}
			if added, ok := f.Added(call.Key{ID: "s"}, "one"); !ok || added.String() != "one+pandas+torch" {
				t.Errorf("added %v, %v", added, ok)
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

// A session whose larger sandbox does not start, or takes no files, goes on as it was.
func TestSession_StaysWhereItCannotGrow(t *testing.T) {
	inBubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.in("s", "x=1", "")
		f.machine.FailureRate, f.machine.Rand = 1, rand.New(rand.NewPCG(1, 1))
		if _, _, err := f.runIn(with("pandas"), "echo $x"); err == nil {
			t.Error("a sandbox that did not start runs code")
		}
		f.machine.FailureRate = 0
		f.in("s", "echo $x", "1\n")
	})
}

// Where sessions share files, the sandbox with further packages takes the place of
// the one without, and the others stay.
func TestSession_GrowsOnASharedWorkspace(t *testing.T) {
	sharing(t, Limits{}, func(t *testing.T, f *fixture, _ func(env, code string) (string, call.Result, error)) {
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
			if err != nil || out != step.want || result.Grown != step.grown {
				t.Errorf("step %d: %q, grown %v, %v", i, out, result.Grown, err)
			}
		}
		if live, _ := f.machine.Live(); len(live) != 2 {
			t.Errorf("%d sandboxes live", len(live))
		}
	})
}

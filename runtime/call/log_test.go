package call

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// fixed is an Executor that always answers the same.
type fixed struct {
	result Result
	err    error
}

func (f fixed) Answer(context.Context, Call) (Result, error) { return f.result, f.err }

// Every call is a line; a sandbox that died is a line of its own, with why.
func TestLog_WritesALineForEachCall(t *testing.T) {
	ok := Result{Result: sandbox.Result{Outcome: "ok", ExitCode: 3, Stdout: sandbox.Text{Head: "abc"}, Stderr: sandbox.Text{Tail: "de"}}}
	dead := &sandbox.DeadError{Reason: "the agent ended", Log: "no space"}
	for name, test := range map[string]struct {
		answer fixed
		want   []string
	}{
		"ended":       {fixed{ok, nil}, []string{`level=INFO msg=call env=bash session=s outcome=failed exit_code=3 duration_ms=N code_bytes=4 output_bytes=5 principal=alice`}},
		"died":        {fixed{Result{}, dead}, []string{`level=ERROR msg="sandbox died" env=bash session=s reason="the agent ended" log="no space"`, `level=INFO msg=call env=bash session=s outcome=died exit_code=0`}},
		"not started": {fixed{Result{}, &StartError{"bash", dead}}, []string{`level=ERROR msg="sandbox died"`, `outcome=refused`}},
		"refused":     {fixed{Result{}, &NoSessionError{"s"}}, []string{`outcome=refused exit_code=0 duration_ms=N code_bytes=4 output_bytes=0 principal=alice reason="there is no session \"s\""`}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			log := slog.New(slog.NewTextHandler(&out, nil))
			result, err := Log(test.answer, log).Answer(t.Context(), Call{Principal: "alice", Env: registry.Environment{Name: "bash"}, Session: "s", Code: "code"})
			if result.ExitCode != test.answer.result.ExitCode || !errors.Is(err, test.answer.err) {
				t.Errorf("it answered %+v, %v", result, err)
			}
			lines := regexp.MustCompile(`duration_ms=\d+`).ReplaceAllString(out.String(), "duration_ms=N")
			for _, want := range test.want {
				if !strings.Contains(lines, want) {
					t.Errorf("%s is missing in\n%s", want, lines)
				}
			}
		})
	}
}

func TestOutcome(t *testing.T) {
	dead := &sandbox.DeadError{}
	for want, err := range map[string]error{"cancelled": nil, "died": dead, "refused": &StartError{"bash", dead}} {
		if got := Outcome(Result{Result: sandbox.Result{Outcome: "cancelled"}}, err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

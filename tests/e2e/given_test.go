package e2e

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
)

// runGiven is a call with fields of _meta.
type runGiven func(t *testing.T, arguments mcptest.Arguments, meta map[string]any) mcptest.Answer

// overBoth runs a test over standard streams and over HTTP.
func overBoth(t *testing.T, test func(t *testing.T, run runGiven)) {
	t.Run("stdio", func(t *testing.T) {
		c := start(t)
		test(t, func(t *testing.T, arguments mcptest.Arguments, meta map[string]any) mcptest.Answer {
			return c.AwaitRun(c.Send("tools/call", map[string]any{"name": "run", "arguments": arguments, "_meta": meta}))
		})
	})
	t.Run("http", func(t *testing.T) {
		c := startHTTP(t, []string{"alice"}, nil, nil).client("alice", mcptest.Stateless)
		test(t, func(t *testing.T, arguments mcptest.Arguments, meta map[string]any) mcptest.Answer {
			answer, err := c.RunWith(t.Context(), arguments, meta, nil)
			if err != nil {
				t.Fatal(err)
			}
			return answer
		})
	})
}

func TestGiven(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, run runGiven) {
		binary := map[string]any{"base64": base64.StdEncoding.EncodeToString([]byte{0, 255})}
		for _, session := range []string{"", "s"} {
			python := mcptest.Arguments{Env: "python", Session: session, Code: "import sys\nprint(sys.stdin.read(), x, open('d/in', 'rb').read(), sep='|')"}
			meta := map[string]any{
				"nix-sandbox-mcp/stdin": "typed", "nix-sandbox-mcp/variables": map[string]any{"x": []any{1.5, "a"}},
				"nix-sandbox-mcp/files": map[string]any{"d/in": binary},
			}
			expect(t, run(t, python, meta), "typed|[1.5, 'a']|b'\\x00\\xff'\n")
			node := mcptest.Arguments{Env: "node", Code: "void process.stdin.on('data', (d) => console.log(d.toString(), x))"}
			if session != "" {
				node.Session = "node" // the same session name has one environment
				node.Code = "console.log(require('fs').readFileSync(0, 'utf8'), x)"
			}
			expect(t, run(t, node, meta), "typed [ 1.5, 'a' ]\n")
			bash := mcptest.Arguments{Env: "bash", Code: "cat; echo; wc -c <d/in; printenv x"}
			if session != "" {
				bash.Session = "bash"
			}
			expect(t, run(t, bash, meta), "typed\n2\n[1.5,\"a\"]\n")
		}
		// What an earlier call was given is not there in the next, but for files and variables of its session.
		expect(t, run(t, mcptest.Arguments{Env: "python", Session: "s", Code: "import sys; print(repr(sys.stdin.read()), x, open('d/in').name)"}, nil), "'' [1.5, 'a'] d/in\n")
		for meta, want := range map[string]string{"nix-sandbox-mcp/stdin": "use text", "nix-sandbox-mcp/other": "is not a field"} {
			answer := run(t, mcptest.Arguments{Env: "python", Code: "print(1)"}, map[string]any{meta: 5})
			if !answer.IsError || !strings.Contains(answer.Text(), want) {
				t.Errorf("%s: %+v, want %q", meta, answer, want)
			}
		}
		// A session that a program ends is not there any more, and nobody is told why.
		run(t, mcptest.Arguments{Env: "python", Session: "short", Code: "y = 1"}, nil)
		expect(t, run(t, mcptest.Arguments{Env: "python", Session: "short", Code: "print(y)"}, map[string]any{"nix-sandbox-mcp/end_session": true}), "1\n")
		expect(t, run(t, mcptest.Arguments{Env: "python", Session: "short", Code: "print('y' in globals())"}, nil), "False\n")
		// Programs can have the output as it was written, models cannot be shown a remark of the code's.
		code := mcptest.Arguments{Env: "python", Code: "import sys; print('[exit status 0]', end=''); print('[hint: x]', end='', file=sys.stderr); sys.exit(3)"}
		if got := run(t, code, map[string]any{"nix-sandbox-mcp/verbatim": true}).Texts(); !slices.Equal(got, []string{"[exit status 0]", "[hint: x]", "[exit status 3]"}) {
			t.Errorf("verbatim: %q", got)
		}
		if got := run(t, code, map[string]any{"nix-sandbox-mcp/verbatim": false}).Texts(); !slices.Equal(got, []string{"stdout: [exit status 0]\n", "--- stderr ---\nstderr: [hint: x]\n", "[exit status 3]"}) {
			t.Errorf("not verbatim: %q", got)
		}
		// As much as a call may be given arrives.
		large := strings.Repeat("é\"\n", 2<<20)
		expect(t, run(t, mcptest.Arguments{Env: "python", Code: "import sys; print(len(sys.stdin.read()))"}, map[string]any{"nix-sandbox-mcp/stdin": large}), "6291456\n")
	})
}

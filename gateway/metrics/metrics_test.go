package metrics

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

func env(name string) registry.Environment {
	return registry.Environment{Name: name, SessionExec: "/nix/store/x/bin/session-run"}
}

// line is what a line of the text format is.
var line = regexp.MustCompile(`^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{[a-z]+="([^"\\\n]|\\[\\n"])*"(,[a-z]+="([^"\\\n]|\\[\\n"])*")*\})? [-+0-9.e]+)$`)

func TestMetrics_CountWhatCameOfCalls(t *testing.T) {
	m := New(Options{Version: "0.1.0 \"x\"\\", Sessions: func() int { return 3 }})
	ok := call.Result{Result: sandbox.Result{Outcome: "ok", Stdout: sandbox.Text{Head: "abc", Cut: 7}}}
	m.Begin(call.Call{Env: env("python"), Principal: "alice"})(ok, nil)
	m.Begin(call.Call{Env: env("python"), Principal: "alice"})(call.Result{}, context.Canceled)
	m.Begin(call.Call{Env: registry.Environment{Name: "no\nsuch"}})(call.Result{}, errors.New("no"))
	m.Begin(call.Call{Env: env("bash")})
	m.Request("tools/call", "modern", 200)
	m.Request("tools/call", "modern", 200)
	m.Request("no\nsuch", "legacy", 404)
	text := string(m.text())
	for l := range strings.Lines(text) {
		if !line.MatchString(strings.TrimSuffix(l, "\n")) {
			t.Errorf("%q is no line of the text format", l)
		}
	}
	for _, want := range []string{
		`nix_sandbox_calls_total{env="python",outcome="ok"} 1`,
		`nix_sandbox_calls_total{env="python",outcome="cancelled"} 1`,
		`nix_sandbox_calls_total{env="other",outcome="refused"} 1`,
		`nix_sandbox_call_seconds_bucket{env="python",le="300"} 2`,
		`nix_sandbox_call_seconds_bucket{env="python",le="+Inf"} 2`,
		`nix_sandbox_call_seconds_count{env="other"} 0`,
		`nix_sandbox_principal_seconds_total{principal="alice"} `,
		`nix_sandbox_output_bytes_total 10`, `nix_sandbox_calls_running 1`, `nix_sandbox_sessions 3`,
		`nix_sandbox_http_requests_total{method="tools/call",era="modern",status="200"} 2`,
		`nix_sandbox_http_requests_total{method="other",era="legacy",status="404"} 1`,
		`nix_sandbox_build_info{version="0.1.0 \"x\"\\"} 1`,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
}

// However many names come, the number of series is bounded.
func TestMetrics_HaveBoundedSeries(t *testing.T) {
	m := New(Options{Sessions: func() int { return 0 }})
	call10 := func(from int) int {
		for i := range 10_000 {
			name := fmt.Sprintf("%d-%d", from, i)
			m.Begin(call.Call{Env: env(name), Principal: name})(call.Result{}, nil)
			m.Request(name, "modern", 404)
			m.Begin(call.Call{Env: registry.Environment{Name: name}, Session: name})(call.Result{}, errors.New(name))
		}
		return strings.Count(string(m.text()), "\n")
	}
	first := call10(0)
	if second := call10(1); first != second || first > 3000 {
		t.Errorf("%d lines, and then %d", first, second)
	}
}

func BenchmarkCall(b *testing.B) {
	m := New(Options{Sessions: func() int { return 0 }})
	c := call.Call{Env: env("python"), Principal: "alice"}
	b.ReportAllocs()
	for b.Loop() {
		m.Begin(c)(call.Result{}, nil)
	}
}

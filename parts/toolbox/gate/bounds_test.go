package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/server"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// unstarted are servers whose processes start until the end.
func unstarted(t *testing.T) *servers {
	s := newServers(slog.New(slog.DiscardHandler))
	s.start = func(ctx context.Context, _ server.Spec, _ *slog.Logger) (*server.Client, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	t.Cleanup(s.close)
	return s
}

// Principals cannot take the places of others: each of 32 has at least one.
func TestPlacesOfPrincipals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unstarted(t)
		var got []int
		for i := range shares + 1 {
			principal := fmt.Sprint("principal ", i)
			if i == shares {
				principal = ""
			}
			n := 0
			for n <= maxProcesses {
				if _, err := s.process(t.Context(), key{"it", fmt.Sprint(principal, "\x00", n)}, principal, &Server{}); err != nil {
					break
				}
				n++
			}
			got = append(got, n)
		}
		if got[0] < 16 || slices.Min(got[:shares]) < 1 || slices.Max(got) > maxProcesses/2 {
			t.Errorf("principals have %d processes", got)
		}
	})
}

// A question of a run that has ended starts nothing.
func TestLateQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unstarted(t)
		ctx, end := context.WithCancel(t.Context())
		must.Get(s.process(ctx, key{"it", "early"}, "a", &Server{}))(t)
		end()
		if _, err := s.process(ctx, key{"it", "late"}, "a", &Server{}); err == nil || len(s.all) != 1 {
			t.Errorf("%d processes: %v", len(s.all), err)
		}
	})
}

// asks runs code that asks a gate with one server.
func asks(t *testing.T, one *Server, do func(ask func(question string) string)) *observer {
	t.Helper()
	one.Tools = map[string]*Tool{"add": {Signature: "add()", Input: Schema{RawMessage: json.RawMessage(`{"type":"object","required":["a"]}`)}}}
	g := New(&Catalog{
		Servers:      map[string]*Server{"it": one},
		Environments: map[string]map[string][]string{"/x": {"it": {"add"}}},
	}, slog.New(slog.DiscardHandler))
	defer g.Close()
	log := &observer{}
	next := executorFunc(func(c call.Call) {
		do(func(question string) string { return string(c.Ask(t.Context(), nil, []byte(question))) })
	})
	must.Get(g.Executor(next, []call.Observer{log}).Answer(t.Context(), call.Call{Env: registry.Environment{SessionExec: "/x"}}))(t)
	return log
}

// Wrong arguments are calls too.
func TestWrongArgumentsCount(t *testing.T) {
	asks(t, &Server{Calls: 2}, func(ask func(string) string) {
		const wrong = `{"server":"it","tool":"add"}`
		says(t, ask(wrong), `"usage"`)
		says(t, ask(wrong), `"usage"`)
		says(t, ask(wrong), `"denied"`, "as often as calls")
	})
}

// A run cannot fill the audit log with calls that are refused.
func TestRecordsOfRefusals(t *testing.T) {
	log := asks(t, &Server{Calls: 1}, func(ask func(string) string) {
		for range maxDenied {
			ask(`[]`)
		}
		says(t, ask(`[]`), `"denied"`, "too many wrong calls")
	})
	if n := len(log.uses); n != maxDenied {
		t.Errorf("%d records", n)
	}
}

// A server's URL is no business of the code.
func TestErrorWithoutURL(t *testing.T) {
	asks(t, &Server{Spec: server.Spec{URL: "http://127.0.0.1:1/mcp?key=secret"}, AtOnce: 1, Calls: 1}, func(ask func(string) string) {
		answer := ask(`{"server":"it","tool":"add","arguments":{"a":1}}`)
		says(t, answer, `"unavailable"`, "refused")
		if strings.Contains(answer, "secret") {
			t.Error(answer)
		}
	})
}

// Of two tools that code calls by one name, the allowed one is meant each time.
func TestNameOfTwoTools(t *testing.T) {
	g := New(&Catalog{Servers: map[string]*Server{"it": {Tools: map[string]*Tool{"x-y": {}, "x.y": {}, "z-a": {}, "z.a": {}}}}}, slog.New(slog.DiscardHandler))
	t.Cleanup(g.Close)
	r := &run{executor: &executor{Gate: g}, tools: map[string][]string{"it": {"x.y"}}}
	for range 50 {
		q := &question{Server: "it", Tool: "x_y"}
		if refused := g.isAllowed(t.Context(), r, q); refused != nil || q.Tool != "x.y" {
			t.Fatalf("%+v for %q", refused, q.Tool)
		}
		q = &question{Server: "it", Tool: "z_a"}
		if refused := g.isAllowed(t.Context(), r, q); refused == nil || refused.Kind != denied {
			t.Fatalf("%+v for %q", refused, q.Tool)
		}
	}
}

// Of a server that all share, each principal gets its turn, however many calls of another one wait.
func TestServers_TakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(slog.New(slog.DiscardHandler))
		defer s.close()
		spec, k := &Server{AtOnce: 8}, key{server: "shared"}
		p := &process{started: make(chan struct{}), slots: account.NewPool(account.Terms{Total: 8, Least: 8}), idle: time.NewTimer(time.Hour)}
		close(p.started)
		s.all[k] = p
		call := func(principal string) time.Duration {
			began := time.Now()
			_, done, err := s.use(t.Context(), k, principal, spec)
			if err != nil {
				t.Error(err)
				return 0
			}
			defer done()
			waited := time.Since(began)
			time.Sleep(4 * time.Second)
			return waited
		}
		var all sync.WaitGroup
		for range 96 {
			all.Go(func() { call("alice") })
		}
		time.Sleep(time.Second)
		if waited := call("bob"); waited > 4*time.Second {
			t.Errorf("bob's call waited %v", waited)
		}
		all.Wait()
	})
}

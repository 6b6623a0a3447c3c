package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// figuresVariable says how often each figure of [TestHTTP_Figures] is measured.
const figuresVariable = "NIX_SANDBOX_TEST_FIGURES"

// median returns the median and the 99th percentile of times.
func median(times []time.Duration) (p50, p99 time.Duration) {
	slices.Sort(times)
	return times[len(times)/2], times[len(times)*99/100]
}

// TestHTTP_Figures measures what HTTP costs beside the standard streams, call by call in
// turn; what a flood of one principal does to another; and what 500 sessions take. It
// prints figures and expects none.
func TestHTTP_Figures(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv(figuresVariable))
	if err != nil || rounds < 1 {
		t.Skip(figuresVariable + " does not say how often to measure")
	}
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("p%d", i))
	}
	s := startHTTP(t, names, map[string]any{
		"lame_duck_seconds": 0,
		"quotas":            map[string]any{"default": map[string]any{"calls": 64, "sessions": 64, "streams": 64, "memory_mb": 1 << 20}},
	}, nil)
	t.Run("calls", func(t *testing.T) {
		stdio, legacy, modern := start(t), s.client("p0", mcptest.Newest), s.client("p0", mcptest.Stateless)
		for _, row := range []struct {
			name, method string
			params       map[string]any
		}{
			{"tools/list", "tools/list", map[string]any{}},
			{"bash in a session", "tools/call", map[string]any{"name": "run", "arguments": mcptest.Arguments{Env: "bash", Session: "b", Code: "echo 1"}}},
			{"python in a session", "tools/call", map[string]any{"name": "run", "arguments": mcptest.Arguments{Env: "python", Session: "p", Code: "1"}}},
		} {
			times := make([][]time.Duration, 3)
			for range rounds {
				for i, call := range []func(){
					func() { stdio.Await(stdio.Send(row.method, row.params)) },
					func() { must.Get(legacy.Call(t.Context(), row.method, row.params, nil))(t) },
					func() { must.Get(modern.Call(t.Context(), row.method, row.params, nil))(t) },
				} {
					began := time.Now()
					call()
					times[i] = append(times[i], time.Since(began))
				}
			}
			base, baseLate := median(times[0])
			t.Logf("%s: stdio %v, 99th %v", row.name, base, baseLate)
			for i, era := range []string{"legacy", "modern"} {
				p50, p99 := median(times[i+1])
				t.Logf("  HTTP, %s: %v (%.2f times, %v more), 99th %v", era, p50, float64(p50)/float64(base), p50-base, p99)
			}
		}
	})
	t.Run("fairness", func(t *testing.T) {
		short := func(c *httpclient.Client) []time.Duration {
			var times []time.Duration
			for range 15 {
				began := time.Now()
				expect(t, inHTTP(t, c, "", "bash", "sleep 0.2; echo ok"), "ok\n")
				times = append(times, time.Since(began))
			}
			return times
		}
		modern, other := s.client("p0", mcptest.Stateless), s.client("p1", mcptest.Stateless)
		quiet, _ := median(short(other))
		ctx, stop := context.WithCancel(t.Context())
		var flood sync.WaitGroup
		for range 64 {
			flood.Go(func() {
				for ctx.Err() == nil {
					_, _ = modern.Run(ctx, mcptest.Arguments{Env: "bash", Code: "sleep 0.2; echo ok"})
				}
			})
		}
		beside, _ := median(short(other))
		stop()
		flood.Wait()
		t.Logf("a call of 0.2 s: %v, and %v beside 64 calls of another (%.2f times)", quiet, beside, float64(beside)/float64(quiet))
	})
	t.Run("sessions", func(t *testing.T) {
		pid := s.cmd.Process.Pid
		descriptors, cost, ofServer := must.Get(procfs.Descriptors(pid))(t), processorTime(procfs.Tree(pid)...), processorTime(pid)
		began := time.Now()
		var all sync.WaitGroup
		for _, name := range names {
			c := s.client(name, mcptest.Stateless)
			for i := range 25 {
				all.Go(func() {
					answer, err := c.Run(t.Context(), mcptest.Arguments{Env: "bash", Session: fmt.Sprintf("s%d", i), Code: "X=1; echo ok"})
					if err != nil || !strings.HasPrefix(answer.Text(), "ok") {
						t.Errorf("%s: %q, %v", name, answer.Text(), err)
					}
				})
			}
		}
		all.Wait()
		took := time.Since(began)
		cost, ofServer = processorTime(procfs.Tree(pid)...)-cost, processorTime(pid)-ofServer
		atOnce := s.memory()
		// The memory of the calls is returned some seconds after them, the pool is filled
		// again, and limit keepers measure a sandbox less often the longer it does nothing.
		const idle = 15 * time.Second
		time.Sleep(time.Minute)
		ofIdle := processorTime(procfs.Tree(pid)...)
		time.Sleep(idle)
		ofIdle = processorTime(procfs.Tree(pid)...) - ofIdle
		t.Logf("500 sessions of 20: open after %v, the server has %d MB at once, and %d MB when nothing runs; %.1f descriptors for each", took, atOnce, s.memory(), float64(must.Get(procfs.Descriptors(pid))(t)-descriptors)/500)
		t.Logf("  while nothing runs, all together take %.2f %% of a processor", 100*ofIdle.Seconds()/idle.Seconds())
		t.Logf("  processor time of each: %v, of which the server %v; %v on two processors", cost/500, ofServer/500, cost/2)
	})
}

// processorTime is what processes, their threads that live, and those of their children
// that have ended have used of processors.
func processorTime(pids ...int) (sum time.Duration) {
	for _, pid := range pids {
		// /proc/PID/stat counts in hundredths of a second, which would lose most of what
		// the processes of a sandbox take.
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, name := range threads {
			text, _ := os.ReadFile(name) // a thread may have ended
			first, _, _ := strings.Cut(string(text), " ")
			ns, _ := strconv.ParseInt(first, 10, 64)
			sum += time.Duration(ns)
		}
		if p, err := procfs.Read(pid); err == nil {
			_, ended := p.Times()
			sum += ended
		}
	}
	return sum
}

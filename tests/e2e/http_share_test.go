package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// Who hangs up cancels the call in the revision without a handshake, which the audit log
// says. In those before, the call goes on, and the next one finds what it left.
func TestHTTP_HangsUpAsTheRevisionSays(t *testing.T) {
	t.Parallel()
	for version, outcome := range map[string]string{mcptest.Newest: "failed", mcptest.Stateless: "cancelled"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			records := filepath.Join(t.TempDir(), "audit.jsonl")
			s := startHTTP(t, []string{"alice"}, map[string]any{"audit_file": records, "lame_duck_seconds": 0}, map[string]any{"prewarm": 0})
			// Of the record of the call that is hung up, there is no other.
			recorded := func() string {
				for line := range strings.Lines(string(must.Get(os.ReadFile(records))(t))) {
					var r audit.Record
					must.Do(t, json.Unmarshal([]byte(line), &r))
					return r.Outcome
				}
				return ""
			}
			c, long := s.client("alice", version), seconds()
			ctx, hangUp := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := c.Run(ctx, mcptest.Arguments{Env: "bash", Session: "s", Code: "left=here; sleep " + long})
				ended <- err
			}()
			var sleeping []int
			patience.Until(t, "the call runs", func() bool {
				sleeping = procfs.WithCommand("sleep\x00" + long)
				return len(sleeping) == 1
			})
			began := time.Now()
			hangUp()
			if err := <-ended; err == nil {
				t.Error("a call that was hung up has an answer")
			}
			if outcome == "failed" {
				// It goes on until it has ended by itself.
				if got := recorded(); got != "" || !procfs.Runs(sleeping[0]) {
					t.Errorf("the call that nobody waits for has ended, with %q in the audit log", got)
				}
				must.Do(t, syscall.Kill(sleeping[0], syscall.SIGKILL))
			}
			patience.Until(t, "the call is in the audit log", func() bool { return recorded() == outcome })
			if outcome == "cancelled" {
				expectWithin(t, time.Second, "a call that is hung up is cancelled in the audit log", time.Since(began))
			}
			patience.Gone(t, sleeping...)
			if outcome == "failed" {
				expect(t, inHTTP(t, s.client("alice", version), "s", "bash", "echo $left"), "here\n")
			}
		})
	}
}

// fairVariable is how many calls the long form of the next test makes.
const fairVariable = "NIX_SANDBOX_TEST_FAIR_ROUNDS"

// While one principal has as many calls going as it may, each of which starts a sandbox,
// every call of another one is answered. The long form compares how long these take.
func TestHTTP_AFloodLeavesSlots(t *testing.T) {
	t.Parallel()
	rounds, isLong := 10, os.Getenv(fairVariable) != ""
	if isLong {
		rounds = must.Get(strconv.Atoi(os.Getenv(fairVariable)))(t)
	}
	const flooding = 32
	s := startHTTP(t, []string{"alice", "bob"}, map[string]any{
		"lame_duck_seconds": 0, "calls_at_once": 8,
		"quotas": map[string]any{"default": map[string]any{"calls": 16, "sessions": 8, "streams": 64, "memory_mb": 1 << 20}},
	}, nil)
	bob := s.client("bob", mcptest.Stateless)
	median := func() time.Duration {
		var took []time.Duration
		for range rounds {
			began := time.Now()
			expect(t, inHTTP(t, bob, "s", "bash", "sleep 0.2; echo bob"), "bob\n")
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	quiet := median()

	ctx, end := context.WithCancel(t.Context())
	var answered, refused atomic.Int64
	var running sync.WaitGroup
	for range flooding {
		running.Go(func() {
			alice := s.client("alice", mcptest.Stateless)
			for ctx.Err() == nil {
				answer, err := alice.Run(ctx, mcptest.Arguments{Env: "bash", Code: "sleep 0.2; echo alice"})
				switch {
				case ctx.Err() != nil:
				case err != nil:
					t.Errorf("a call of the flood: %v", err)
					return
				case answer.IsError:
					refused.Add(1)
					time.Sleep(50 * time.Millisecond) // a client's; the tests beside this one need the processors
				default:
					answered.Add(1)
				}
			}
		})
	}
	patience.Until(t, "more calls come than may run", func() bool { return answered.Load() > 0 && refused.Load() > 0 })
	before := answered.Load()
	beside := median()
	end()
	running.Wait()
	result := fmt.Sprintf("%d calls: median %v alone and %v beside a flood, %.1f times; meanwhile %d calls of the flood were answered and %d refused",
		rounds, quiet, beside, float64(beside)/float64(quiet), answered.Load()-before, refused.Load())
	t.Log(result)
	if isLong && beside >= 3*quiet {
		t.Error(result + ": want less than 3 times")
	}
}

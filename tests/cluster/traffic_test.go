package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// principals is how many call at a time.
const principals = 10

func nameOf(i int) string  { return fmt.Sprintf("principal-%d", i) }
func tokenOf(i int) string { return fmt.Sprintf("nsm_principal-%d-of-the-tests", i) }

// tokens is the file of the principals' tokens.
func tokens() string {
	var file strings.Builder
	for i := range principals {
		fmt.Fprintf(&file, "%s sha256:%x\n", nameOf(i), sha256.Sum256([]byte(tokenOf(i))))
	}
	return file.String()
}

// at returns a client that calls by a host's name, which leads to an address.
func at(host, address, token string) *httpclient.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &httpclient.Client{
		URL: "http://" + host + "/mcp", Token: token, Version: mcptest.Stateless,
		HTTP: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, address)
			},
		}},
	}
}

// traffic is what principals call until it is stopped, and what became of it.
type traffic struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu       sync.Mutex
	began    time.Time
	answered int
	anew     int            // answers of a session that had to begin again
	refused  map[string]int // by reason
	wrong    []string       // answers that are another call's, or refusals without a reason
	longest  time.Duration  // time between two answers of a principal
}

// startTraffic has the principals together make so many calls a second. Each waits for the answer
// to its last call. The code leaves the principal's name in its session's files.
func startTraffic(ctx context.Context, host, address string, calls int) *traffic {
	ctx, stop := context.WithCancel(ctx)
	t := &traffic{stop: stop, refused: map[string]int{}, began: time.Now()}
	for i := range principals {
		client := at(host, address, tokenOf(i))
		t.done.Go(func() {
			tick := time.NewTicker(time.Second * principals / time.Duration(calls))
			defer tick.Stop()
			last := time.Now()
			for n := 0; ctx.Err() == nil; n++ {
				// A call that has begun is waited for, also when the traffic stops.
				if t.call(context.WithoutCancel(ctx), client, nameOf(i), n) {
					t.mu.Lock()
					t.longest = max(t.longest, time.Since(last))
					t.mu.Unlock()
					last = time.Now()
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	return t
}

// call makes a call, and reports whether it was answered.
func (t *traffic) call(ctx context.Context, client *httpclient.Client, name string, n int) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*patience.Long)
	defer cancel()
	code := fmt.Sprintf("cat who 2>/dev/null || echo nobody; echo %s >who; echo call-%d", name, n)
	answer, err := client.Run(ctx, mcpclient.Arguments{Env: "bash", Session: "work", Code: code})
	t.mu.Lock()
	defer t.mu.Unlock()
	var status *httpclient.StatusError
	var connection *net.OpError
	switch text := answer.Text(); {
	case errors.As(err, &status) && slices.Contains([]int{429, 502, 503, 504}, status.Status):
		t.refused[fmt.Sprintf("status %d", status.Status)]++
		return false
	case errors.As(err, &connection) && connection.Op == "dial":
		t.refused["no connection"]++
		return false
	case err != nil && strings.Contains(err.Error(), "unexpected EOF"):
		// The stream of an answer that had begun.
		t.refused["the stream has ended"]++
		return false
	case err != nil:
		t.wrong = append(t.wrong, err.Error())
		return false
	case answer.IsError:
		t.refused[fmt.Sprintf("an answer: %.80s", text)]++
		return false
	case strings.HasPrefix(text, fmt.Sprintf("%s\ncall-%d\n", name, n)):
	case strings.HasPrefix(text, fmt.Sprintf("nobody\ncall-%d\n", n)):
		t.anew++
	default:
		t.wrong = append(t.wrong, fmt.Sprintf("%s, call %d: %.200q", name, n, text))
		return false
	}
	t.answered++
	return true
}

// end stops the traffic, and returns what became of it.
func (t *traffic) end() string {
	t.stop()
	t.done.Wait()
	seconds := time.Since(t.began).Seconds()
	report := fmt.Sprintf("%d calls answered in %.0f s, %.1f a second; %d sessions began; the longest wait between two answers of one was %.1f s",
		t.answered, seconds, float64(t.answered)/seconds, t.anew, t.longest.Seconds())
	for _, reason := range slices.Sorted(maps.Keys(t.refused)) {
		report += fmt.Sprintf("; %d refused: %s", t.refused[reason], reason)
	}
	return report
}

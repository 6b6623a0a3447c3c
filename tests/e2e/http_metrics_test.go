package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// metricsURL is where a server that has metrics_listen serves metrics, without a path.
func (s *httpServer) metricsURL() string {
	s.t.Helper()
	patience.Wait(s.t, patience.Long, s.log.String, func() bool { return metricsAddress.MatchString(s.log.String()) })
	return "http://" + metricsAddress.FindStringSubmatch(s.log.String())[1]
}

// metrics are the metrics of a server that has metrics_listen.
func (s *httpServer) metrics() string {
	s.t.Helper()
	response := must.Get(http.Get(s.metricsURL() + "/metrics"))(s.t)
	defer response.Body.Close()
	return string(must.Get(io.ReadAll(response.Body))(s.t))
}

// metric is the value of a metric without labels.
func (s *httpServer) metric(name string) float64 {
	s.t.Helper()
	text := s.metrics()
	_, value, found := strings.Cut(text, "\n"+name+" ")
	if !found {
		s.t.Fatalf("the metrics lack %s:\n%s", name, text)
	}
	value, _, _ = strings.Cut(value, "\n")
	return must.Get(strconv.ParseFloat(value, 64))(s.t)
}

// The metrics count requests over HTTP. Whatever clients make up, the number of series
// stays, and a server that is started again has counted nothing.
func TestHTTP_CountsRequests(t *testing.T) {
	t.Parallel()
	begin := func() (s *httpServer, metrics func() string) {
		s = startHTTP(t, []string{"alice"}, map[string]any{"metrics_listen": "127.0.0.1:0", "lame_duck_seconds": 0}, map[string]any{"prewarm": 0})
		return s, s.metrics
	}
	s, metrics := begin()
	// Each address serves its own alone.
	for _, url := range []string{s.url + "/metrics", s.metricsURL() + "/mcp"} {
		response := must.Get(http.Get(url))(t)
		response.Body.Close()
		if response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: status %d", url, response.StatusCode)
		}
	}
	legacy, modern := s.client("alice", mcptest.Newest), s.client("alice", mcptest.Stateless)
	inHTTP(t, legacy, "s", "bash", "echo 1")
	inHTTP(t, modern, "s", "bash", "echo 1")
	s.status(t.Context(), nil)
	// A request is counted after its response.
	for _, want := range []string{
		`{method="initialize",era="legacy",status="200"} 1`, `{method="notifications/initialized",era="legacy",status="202"} 1`,
		`{method="tools/call",era="legacy",status="200"} 1`, `{method="server/discover",era="modern",status="200"} 1`,
		`{method="tools/call",era="modern",status="200"} 1`, `{method="POST",era="legacy",status="401"} 1`,
	} {
		patience.Wait(t, patience.Long, metrics, func() bool { return strings.Contains(metrics(), "nix_sandbox_http_requests_total"+want+"\n") })
	}

	// Each client makes up a method of MCP and of HTTP, an environment, a session and an
	// HTTP session.
	const clients = 8
	each := sized(100, 625)
	invent := func(round int) {
		var running sync.WaitGroup
		for client := range clients {
			running.Go(func() {
				for i := range each {
					name := fmt.Sprintf("made-up-%d-%d-%d", round, client, i)
					_, _ = modern.Call(t.Context(), name, nil, nil) // it is refused
					_, _ = modern.Run(t.Context(), mcptest.Arguments{Env: name, Session: name, Code: ":"})
					r, err := legacy.Request(t.Context(), strings.ToUpper(name), bytes.NewReader(nil))
					if err == nil {
						r.Header.Set("Mcp-Session-Id", name)
						var response *http.Response
						if response, err = legacy.Do(r); err == nil {
							response.Body.Close()
						}
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		running.Wait()
	}
	counted := func(n int) func() bool {
		return func() bool {
			return strings.Contains(metrics(), fmt.Sprintf("{method=\"other\",era=\"modern\",status=\"404\"} %d\n", n*clients*each)) &&
				strings.Contains(metrics(), fmt.Sprintf("{method=\"other\",era=\"legacy\",status=\"405\"} %d\n", n*clients*each))
		}
	}
	invent(1)
	patience.Wait(t, patience.Long, metrics, counted(1))
	first := strings.Count(metrics(), "\n")
	invent(2)
	patience.Wait(t, patience.Long, metrics, counted(2))
	if second := strings.Count(metrics(), "\n"); second != first || strings.Contains(metrics(), "made-up") {
		t.Errorf("%d lines of metrics, and then %d", first, second)
	}
	s.end()
	_, metrics = begin()
	if text := metrics(); strings.Contains(text, "http_requests_total{") || strings.Contains(text, "calls_total{") {
		t.Errorf("a server that has just started has counted\n%s", text)
	}
}

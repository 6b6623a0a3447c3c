package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	status "github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

var metricsAddress = regexp.MustCompile(`"msg":"metrics","address":"([^"]+)"`)

// The log, the audit log and the metrics of a server for many say who called, and the
// first two the trace that the client named in a header.
func TestHTTP_SaysWhoCalled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	s := startHTTP(t, []string{"alice", "bob"}, map[string]any{"metrics_listen": "127.0.0.1:0", "audit_file": path}, nil)
	url := s.metricsURL()
	get := func(path string) (int, string) {
		response := must.Get(http.Get(url + path))(t)
		defer response.Body.Close()
		return response.StatusCode, string(must.Get(io.ReadAll(response.Body))(t))
	}
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	alice := s.client("alice", mcptest.Newest)
	alice.Header = http.Header{"Traceparent": {"00-" + trace + "-00f067aa0ba902b7-01"}}
	inHTTP(t, alice, "s", "bash", "echo 1")
	inHTTP(t, s.client("bob", mcptest.Newest), "", "nothing", "echo 2")

	records := map[string]audit.Record{}
	for line := range strings.Lines(string(must.Get(os.ReadFile(path))(t))) {
		var r audit.Record
		must.Do(t, json.Unmarshal([]byte(line), &r))
		records[r.Who] = r
	}
	if r := records["alice"]; r.Outcome != "ok" || r.Trace != trace || r.Session != "s" {
		t.Errorf("alice's record: %+v", r)
	}
	if r := records["bob"]; r.Outcome != "refused" || r.Trace != "" || r.Env != "nothing" {
		t.Errorf("bob's record: %+v", r)
	}
	for _, want := range []string{`"principal":"alice","trace_id":"` + trace + `"`, `"principal":"bob"`} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("%s is not in the log", want)
		}
	}
	_, text := get("/metrics")
	for _, want := range []string{`nix_sandbox_calls_total{env="bash",outcome="ok"} 1`, `nix_sandbox_calls_total{env="other",outcome="refused"} 1`,
		`nix_sandbox_principal_seconds_total{principal="alice"}`, "nix_sandbox_sessions 1\n", "nix_sandbox_audit_records_total 2\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in the metrics:\n%s", want, text)
		}
	}
	var now status.Snapshot
	_, text = get(status.Path)
	must.Do(t, json.Unmarshal([]byte(text), &now))
	if len(now.Principals) != 2 || len(now.Sessions) != 1 || now.Sessions[0].Principal != "alice" || now.Audit.Records != 2 || strings.Contains(text, "echo 1") {
		t.Errorf("the snapshot is %s", text)
	}
	// Metrics are served at their own address alone, and there is no page.
	for address, want := range map[string]int{s.url + "/metrics": 404, s.url + status.Path: 404, url + "/": 404, url + "/readyz": 200, url + "/healthz": 200} {
		response := must.Get(http.Get(address))(t)
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %d, want %d", address, response.StatusCode, want)
		}
	}
}

package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// auditRecords reads a log. It leaves out lines that a full disk has cut.
func auditRecords(t *testing.T, path string) (all []audit.Record) {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	for line := range strings.Lines(string(text)) {
		var r audit.Record
		if json.Unmarshal([]byte(line), &r) == nil {
			all = append(all, r)
		}
	}
	return all
}

// Every call is a record, whatever became of it, when its answer is there.
func TestAudit_HasARecordOfEveryCall(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	c := start(t, "NIX_SANDBOX_AUDIT="+path)
	records := func() []audit.Record { return auditRecords(t, path) }
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	code := "echo out; echo err >&2; exit 3"
	params := mcpclient.RunParams(mcptest.Arguments{Code: code, Env: "bash", Session: "s"})
	params["_meta"] = map[string]any{"traceparent": "00-" + trace + "-00f067aa0ba902b7-01"}
	c.Request("tools/call", params)
	if got := records(); len(got) != 1 {
		t.Fatalf("there are %d records when the first answer is read", len(got))
	}
	run(c, "nothing", "echo")
	c.Run(mcptest.Arguments{Code: "echo", Env: "bash", Session: "not a name"})
	id := c.SendRun(mcptest.Arguments{Code: "echo began; sleep 900", Env: "bash", Session: "s"})
	patience.Wait(t, patience.Long, func() string { return "the call never runs" }, func() bool {
		return strings.Contains(c.Log(), "session=s") // the first call's line
	})
	c.Notify("notifications/cancelled", map[string]any{"requestId": json.RawMessage(id)})
	var got []audit.Record
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("there are %d records, want 4: %+v", len(got), got) }, func() bool {
		got = records()
		return len(got) == 4
	})
	first := got[0]
	if want := fmt.Sprintf("%x", sha256.Sum256([]byte(code))); first.CodeHash != want || first.Trace != trace ||
		first.Env != "bash" || first.Session != "s" || first.Closure == "" || first.ExitCode != 3 || first.StdoutBytes != 4 || first.StderrBytes != 4 {
		t.Errorf("%+v", first)
	}
	for i, want := range []string{"failed", "refused", "refused", "cancelled"} {
		if got[i].Outcome != want {
			t.Errorf("record %d is %+v, want %s", i+1, got[i], want)
		}
	}
	if got[1].Env != "nothing" || got[2].Session != "not a name" || got[1].Reason == "" {
		t.Errorf("refused: %+v and %+v", got[1], got[2])
	}
}

// A disk that is full ends no call: the log says that records are missing, and the first
// record after it how many.
func TestAudit_FullDiskEndsNoCall(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts take root")
	}
	t.Parallel()
	disk := t.TempDir()
	server := command(t, "PATH="+os.Getenv("PATH"), "NIX_SANDBOX_AUDIT="+filepath.Join(disk, "audit.jsonl"))
	// A page is left for the first records.
	mount := `mount -t tmpfs -o size=64k none "$0" && head -c 61440 /dev/zero >"$0/other" && exec "$@"`
	wrapped := exec.Command("unshare", "--mount", "sh", "-c", mount, disk, server.Path, "--stdio")
	wrapped.Env = server.Env
	c := mcptest.Start(t, wrapped)
	c.Initialize(mcptest.Newest)
	const missing = "misses records from now on"
	calls := 0
	call := func() {
		t.Helper()
		calls++
		expect(t, in(c, "s", "bash", fmt.Sprintf("echo %d", calls)), fmt.Sprintf("%d\n", calls))
	}
	for calls < 100 && !strings.Contains(c.Log(), missing) {
		call()
	}
	if calls == 1 || !strings.Contains(c.Log(), missing) {
		t.Fatalf("after %d calls, the log has no line that says %q:\n%s", calls, missing, c.Log())
	}
	for range 5 {
		call()
	}
	// The server's own view of the disk.
	disk = filepath.Join("/proc", fmt.Sprint(c.PID()), "root", disk)
	must.Do(t, os.Remove(filepath.Join(disk, "other")))
	call()
	got := auditRecords(t, filepath.Join(disk, "audit.jsonl"))
	if lost := got[len(got)-1].Lost; lost < 6 || len(got)+int(lost) != calls {
		t.Errorf("%d calls: %d records, and %d are said to be missing", calls, len(got), lost)
	}
	if n := strings.Count(c.Log(), missing); n != 1 {
		t.Errorf("the log says %d times that the audit log %s", n, missing)
	}
}

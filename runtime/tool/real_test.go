package tool

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

func TestMain(m *testing.M) { os.Exit(mcptest.Main(m)) }

// real is the tool over real sandboxes.
type real struct {
	*Tool
	t testing.TB
}

func overRealSandboxes(t testing.TB) *real {
	t.Helper()
	set, starter := sandboxtest.Real(t)
	log := slog.New(slog.DiscardHandler)
	sessions := session.New(session.Options{Starter: starter, Spec: sandboxtest.Spec, OneShot: session.OneShot(starter, sandboxtest.Spec, nil), Limits: session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: 8}, Log: log})
	t.Cleanup(sessions.Close)
	return &real{New(Options{Environments: registry.New(set), Executor: sessions, Sessions: sessions, Log: log}), t}
}

func (r *real) run(env, session, code string) *mcp.CallToolResult {
	r.t.Helper()
	arguments := map[string]any{"code": code, "env": env}
	if session != "" {
		arguments["session"] = session
	}
	return r.Accept("", arguments).Answer(context.Background(), nil)
}

// A link can be read, whatever its file is called, and names alone cost a
// session nothing, however many and long they are.
func TestRealFiles_CanBeRead(t *testing.T) {
	r := overRealSandboxes(t)
	result := r.run("bash", "s", `mkdir -p "outputs/a dir"; printf 'a,b\n1,2\n' >"outputs/a dir/100% ü?#.csv"; printf '\0\1\2' >outputs/b.bin; seq 100000 >outputs/large.txt`)
	got := map[string]mcp.ResourceContents{}
	for _, content := range result.Content[1:] {
		link, ok := content.(mcp.ResourceLink)
		if !ok {
			t.Fatalf("content %+v", content)
		}
		contents, err := read(r.Tool, link.URI)
		if err != nil {
			t.Fatalf("%s: %v", link.URI, err)
		}
		got[link.Name] = contents
	}
	csv, ok := got["100% ü?#.csv"].(mcp.TextResourceContents)
	if !ok || csv.Text != "a,b\n1,2\n" || csv.MIMEType != "text/csv" {
		t.Errorf("csv: %+v", got)
	}
	bin, ok := got["b.bin"].(mcp.BlobResourceContents)
	if !ok || bin.Blob != "AAEC" || bin.MIMEType != "application/octet-stream" {
		t.Errorf("bin: %+v", got["b.bin"])
	}
	if large, ok := got["large.txt"].(mcp.TextResourceContents); !ok || len(large.Text) != 588895 {
		t.Errorf("large: %d bytes", len(large.Text))
	}
	const code = `x=$(printf '\001%.0s' {1..250}); d=outputs/$x/$x/$x; mkdir -p "$d"; for n in {1..1000}; do : >"$d/$n"; done; echo made`
	if got := text(r.run("bash", "s", code)); !strings.HasPrefix(got, "made\n") {
		t.Errorf("%.300q", got)
	}
	if got := text(r.run("bash", "s", "echo $d | wc -c")); got != "761\n" {
		t.Errorf("after it: %q", got)
	}
}

// Nothing outside the workspace can be read.
func TestRealFiles_StayInside(t *testing.T) {
	r := overRealSandboxes(t)
	r.run("bash", "s", "ln -s /etc/hostname link; ln -s / root; mkfifo fifo; head -c 9000000 /dev/zero >big; mkdir dir; echo kept >file")
	for _, uri := range []string{"sandbox://s/link", "sandbox://s/root/etc/hostname", "sandbox://s/fifo", "sandbox://s/big", "sandbox://s/dir"} {
		if contents, err := read(r.Tool, uri); err == nil {
			t.Errorf("%s: %+v", uri, contents)
		}
	}
	if contents, err := read(r.Tool, "sandbox://s/file"); err != nil || contents.(mcp.TextResourceContents).Text != "kept\n" {
		t.Errorf("contents %+v, error %v", contents, err)
	}
}

// The bound on an answer holds for stdout and stderr together.
func TestRealOutput_IsBounded(t *testing.T) {
	r := overRealSandboxes(t)
	for _, session := range []string{"", "s"} {
		got := text(r.run("bash", session, "seq 100000; seq 100000 >&2; echo end"))
		if len(got) > 32<<10+300 {
			t.Errorf("session %q: %d bytes", session, len(got))
		}
		for _, want := range []string{"1\n2\n3\n", "cut here ...]\n", "\n100000\nend\n--- stderr ---\n1\n2\n", "\n100000\n[1.1 MB of output cut; "} {
			if !strings.Contains(got, want) {
				t.Errorf("session %q: %q is missing in %q ... %q", session, want, got[:100], got[len(got)-100:])
			}
		}
	}
}

// BenchmarkSession is a warm call without the transport.
func BenchmarkSession(b *testing.B) {
	r := overRealSandboxes(b)
	for b.Loop() {
		if got := text(r.run("python", "s", "print(1+1)")); got != "2\n" {
			b.Fatal(got)
		}
	}
}

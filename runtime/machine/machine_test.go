package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// environment is one whose bin/check is this script.
func environment(t *testing.T, name, needs, script string) registry.Environment {
	t.Helper()
	bin := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(bin, "check"), []byte("#!/bin/sh\n"+script), 0o755))
	return registry.Environment{Name: name, Needs: needs, SessionExec: filepath.Join(bin, "session-run")}
}

// What sandboxes need is what their own programs say, each finding once.
func TestCheck_AsksEachArtifactOnce(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	say := func(findings string) string {
		return "echo x >> " + asked + "\n[ -z \"$HOME\" ] || exit 1\nprintf %s '{\"findings\":[" + findings + "]}'\n"
	}
	const (
		one = `{"name":"one","ok":true,"needed":true,"found":"is there"}`
		two = `{"name":"two","ok":false,"needed":false,"found":"is \u001b[31m old","fix":"buy\na new one"}`
	)
	got := Check(t.Context(), []registry.Environment{
		environment(t, "a", "x", say(one)),
		environment(t, "b", "x", say("1")),
		environment(t, "c", "y", say(one+","+two)),
		environment(t, "d", "", say(two)),
		{Name: "older", SessionExec: filepath.Join(t.TempDir(), "session-run")},
	})
	want := []Finding{
		{Name: "one", OK: true, Needed: true, Found: "is there"},
		{Name: "two", Found: "is [31m old", Fix: "buy a new one"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if text, err := os.ReadFile(asked); err != nil || string(text) != "x\nx\nx\n" {
		t.Errorf("asked %q, %v", text, err)
	}
}

// A program that is broken is a finding, and holds nothing up.
func TestCheck_NamesABrokenCheck(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat(`{"name":"x"},`, maxFindings+1), ",")
	for name, test := range map[string]struct{ script, want string }{
		"fails":         {"exit 3\n", "check does not run: exit status 3"},
		"says nothing":  {"exit 0\n", "printed no findings"},
		"says anything": {"echo no\n", "printed no findings"},
		"other types":   {`echo '{"findings":[{"name":1}]}'` + "\n", "printed no findings"},
		"too many":      {"echo '{\"findings\":[" + many + "]}'\n", "printed 33 findings, more than 32"},
		"endless":       {"exec yes\n", "read its output: larger than its limit of 65536 bytes"},
	} {
		got := Check(t.Context(), []registry.Environment{environment(t, "x", "", test.script)})
		if len(got) != 1 || got[0].OK || !got[0].Needed || got[0].Name != "check of x" || !strings.Contains(got[0].Found, test.want) || got[0].Fix == "" {
			t.Errorf("%s: %+v, want %q", name, got, test.want)
		}
	}
}

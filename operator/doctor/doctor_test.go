package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func write(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(name, []byte(text), mode))
	return name
}

// environment is one whose bin/check is this script.
func environment(t *testing.T, name, needs, script string) registry.Environment {
	t.Helper()
	bin := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(bin, "check"), []byte("#!/bin/sh\n"+script), 0o755))
	return registry.Environment{Name: name, Needs: needs, SessionExec: filepath.Join(bin, "session-run")}
}

// What sandboxes need is what their own programs say, each finding once.
func TestMachine_AsksEachArtifactOnce(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	say := func(findings string) string {
		return "echo x >> " + asked + "\n[ -z \"$HOME\" ] || exit 1\nprintf %s '{\"findings\":[" + findings + "]}'\n"
	}
	const (
		one = `{"name":"one","ok":true,"needed":true,"found":"is there"}`
		two = `{"name":"two","ok":false,"needed":false,"found":"is \u001b[31m old","fix":"buy\na new one"}`
	)
	got := Machine(t.Context(), []registry.Environment{
		environment(t, "a", "x", say(one)),
		environment(t, "b", "x", say("1")),
		environment(t, "c", "y", say(one+","+two)),
		environment(t, "d", "", say(two)),
		{Name: "older", SessionExec: filepath.Join(t.TempDir(), "session-run")},
	})
	want := []Finding{
		{Name: "one", OK: true, Needed: true, Found: "is there"},
		{Name: "two", Found: "is  [31m old", Fix: "buy a new one"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if text, err := os.ReadFile(asked); err != nil || string(text) != "x\nx\nx\n" {
		t.Errorf("asked %q, %v", text, err)
	}
}

// A program that is broken is a finding, and holds nothing up.
func TestMachine_NamesABrokenCheck(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat(`{"name":"x"},`, maxFindings+1), ",")
	for name, test := range map[string]struct{ script, want string }{
		"fails":         {"exit 3\n", "check does not run: exit status 3"},
		"says nothing":  {"exit 0\n", "printed no findings"},
		"says anything": {"echo no\n", "printed no findings"},
		"other types":   {`echo '{"findings":[{"name":1}]}'` + "\n", "printed no findings"},
		"too many":      {"echo '{\"findings\":[" + many + "]}'\n", "printed 33 findings, more than 32"},
		"endless":       {"exec yes\n", "read its output: larger than its limit of 65536 bytes"},
	} {
		got := Machine(t.Context(), []registry.Environment{environment(t, "x", "", test.script)})
		if len(got) != 1 || got[0].OK || !got[0].Needed || got[0].Name != "check of x" || !strings.Contains(got[0].Found, test.want) || got[0].Fix == "" {
			t.Errorf("%s: %+v, want %q", name, got, test.want)
		}
	}
}

func TestGroups_AreAFindingWhereThereAreNone(t *testing.T) {
	if f := groups(cgroup.Paths{Groups: "/does/not/exist", Own: "/does/not/exist"}); f.OK || f.Needed || f.Fix == "" {
		t.Errorf("%+v", f)
	}
}

func TestExplain(t *testing.T) {
	err := error(&sandbox.DeadError{Reason: "the agent ended", Log: "nix-sandbox-jail: error: no bwrap" + sandbox.LogSeparator + "nix-sandbox-jail: hint: build"})
	if problem, fix := explain(err); problem != "no bwrap" || fix != "build" {
		t.Errorf("%q, %q", problem, fix)
	}
	err = errors.New("something else")
	if problem, fix := explain(err); problem != "something else" || fix != rebuild {
		t.Errorf("%q, %q", problem, fix)
	}
}

// A sandbox that does not start is a finding; others are told of as well.
func TestExamineTellsOfEverySandbox(t *testing.T) {
	exec := write(t, "#!/bin/sh\necho 'nix-sandbox-jail: error: it is broken' >&2\nexit 125\n", 0o755)
	r := Examine(t.Context(), Subject{
		Environments: []registry.Environment{{Name: "one", SessionExec: exec, OutputBytes: 1000}},
		Broken:       []registry.Broken{{Name: "two", Err: errors.New("two is broken")}},
	})
	if r.OK() {
		t.Error("all is well")
	}
	var table, object bytes.Buffer
	must.Do(t, errors.Join(r.WriteTable(&table), r.WriteJSON(&object)))
	for _, want := range []string{"✗ sandbox one ", "  it is broken\n", "✗ sandbox two ", "  two is broken\n", "\n2 things that are needed are missing.\n"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in:\n%s", want, &table)
		}
	}
	var got struct {
		OK       bool
		Findings []Finding
		Limits   string
	}
	if err := json.Unmarshal(object.Bytes(), &got); err != nil || got.OK || len(got.Findings) != len(r.Findings) || got.Limits != r.Limits {
		t.Errorf("%v: %s", err, &object)
	}
}

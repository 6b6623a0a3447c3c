package program

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox/framed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func write(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(name, []byte(text), mode))
	return name
}

func TestGroups_AreAFindingWhereThereAreNone(t *testing.T) {
	if f := groupFinding(cgroup.Paths{Groups: "/does/not/exist", Own: "/does/not/exist"}); f.OK || f.Needed || f.Fix == "" {
		t.Errorf("%+v", f)
	}
}

func TestExplain(t *testing.T) {
	err := error(&sandbox.DeadError{Reason: "the agent ended", Log: "nix-sandbox-jail: error: no bwrap" + sandbox.LogSeparator + "nix-sandbox-jail: hint: build"})
	if problem, fix := explain(err); problem != "no bwrap" || fix != "build" {
		t.Errorf("%q, %q", problem, fix)
	}
	err = errors.New("something else")
	if problem, fix := explain(err); problem != "something else" || fix != machine.Rebuild {
		t.Errorf("%q, %q", problem, fix)
	}
}

// A sandbox that does not start is a finding, and does not hide others.
func TestReport_HasEverySandbox(t *testing.T) {
	exec := write(t, "#!/bin/sh\necho 'nix-sandbox-jail: error: it is broken' >&2\nexit 125\n", 0o755)
	starter := framed.New(slog.New(slog.DiscardHandler), framed.Options{StartTimeout: tryWithin})
	defer starter.Close(tryWithin)
	env := registry.Environment{Name: "one", SessionExec: exec, OutputBytes: 1000}
	r := newReport(machine.Finding{}, []machine.Finding{
		try(t.Context(), starter, env, sandbox.HostFolders{}, tryWithin),
		{Name: "sandbox two", Needed: true, Found: "two is broken"},
		{Name: "Nix", Found: "there is none"},
	})
	if r.OK {
		t.Error("all is well")
	}
	var table, object bytes.Buffer
	must.Do(t, errors.Join(r.writeTable(&table), format.JSON(&object, r)))
	for _, want := range []string{"✗ sandbox one  it is broken\n", "✗ sandbox two  two is broken\n", "✗ Nix          there is none\n", "\n2 things that are needed are missing.\n"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in:\n%s", want, &table)
		}
	}
	var got struct {
		OK       bool
		Findings []machine.Finding
		Limits   string
	}
	if err := json.Unmarshal(object.Bytes(), &got); err != nil || got.OK || len(got.Findings) != 3 || got.Limits != sandbox.ByAgent {
		t.Errorf("%v: %s", err, &object)
	}
}

package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

func write(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestVersion(t *testing.T) {
	for said, want := range map[string]bool{
		"bubblewrap 0.8.0": true, "bubblewrap 0.12.0": true, "bubblewrap 1.0": true, "bubblewrap 0.11.0-rc1": true,
		"bubblewrap 0.7.0": false, "bubblewrap 0": false, "bubblewrap": false, "bwrap 1.0": false, "": false,
	} {
		program := write(t, "#!/bin/sh\necho '"+said+"'\n", 0o755)
		f := version(t.Context(), program)
		if f.OK != want || !f.Needed || f.Found == "" || (f.Mend == "") != want {
			t.Errorf("%q: %+v", said, f)
		}
	}
	if f := version(t.Context(), "/does/not/exist"); f.OK || f.Mend == "" {
		t.Errorf("%+v", f)
	}
}

func TestKernel(t *testing.T) {
	for _, test := range []struct {
		got  Finding
		want bool
	}{
		{filters(write(t, "Name:\tx\nSeccomp:\t0\n", 0o600)), true},
		{filters(write(t, "Name:\tx\n", 0o600)), false},
		{overlay(write(t, "nodev\toverlay\n\text4\n", 0o600)), true},
		{overlay(write(t, "nodev\ttmpfs\n", 0o600)), false},
		{groups(cgroup.Paths{Groups: "/does/not/exist", Own: "/does/not/exist"}), false},
	} {
		if test.got.OK != test.want || (test.got.Mend == "") != test.want {
			t.Errorf("%+v, want %v", test.got, test.want)
		}
	}
}

func TestExplain(t *testing.T) {
	err := error(&sandbox.DeadError{Reason: "the agent ended", Log: "nix-sandbox-jail: error: no bwrap" + sandbox.LogSeparator + "nix-sandbox-jail: hint: build"})
	if problem, mend := explain(err); problem != "no bwrap" || mend != "build" {
		t.Errorf("%q, %q", problem, mend)
	}
	err = errors.New("something else")
	if problem, mend := explain(err); problem != "something else" || mend != rebuild {
		t.Errorf("%q, %q", problem, mend)
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
	if err := errors.Join(r.WriteTable(&table), r.WriteJSON(&object)); err != nil {
		t.Fatal(err)
	}
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

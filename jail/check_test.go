package jail

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestCheckMachine_NamesWhatIsMissing(t *testing.T) {
	file := func(text string) string {
		folder := t.TempDir()
		// Where root tests, another user starts the program.
		must.Do(t, os.Chmod(filepath.Dir(folder), 0o755))
		name := filepath.Join(folder, "file")
		must.Do(t, os.WriteFile(name, []byte(text), 0o755))
		return name
	}
	with, without := &Spec{Overlay: &Overlay{}}, &Spec{NoOverlay: "it is old"}
	for name, test := range map[string]struct {
		got    Finding
		ok     bool
		needed bool
		want   string
	}{
		"seccomp":      {filters(file("Name:\tx\nSeccomp:\t0\n")), true, true, "has seccomp"},
		"no seccomp":   {filters(file("Name:\tx\n")), false, true, "has no seccomp"},
		"overlay":      {with.overlays(file("nodev\toverlay\n\text4\n")), true, false, "has it"},
		"no overlay":   {with.overlays(file("nodev\ttmpfs\n")), false, false, "no overlay file system loaded"},
		"no overlays":  {without.overlays(file("nodev\toverlay\n")), false, false, "it is old"},
		"bubblewrap":   {(&Spec{Bubblewrap: file("#!/bin/sh\n")}).bubblewrap(), true, true, "/file"},
		"no bwrap":     {(&Spec{Bubblewrap: "/does/not/exist"}).bubblewrap(), false, true, "start /does/not/exist: "},
		"broken bwrap": {(&Spec{Bubblewrap: file("#!/bin/sh\necho no room >&2\nexit 1\n")}).namespaces(t.Context()), false, true, "no room"},
	} {
		if test.got.OK != test.ok || test.got.Needed != test.needed || !strings.Contains(test.got.Found, test.want) || (test.got.Fix == "") != test.ok {
			t.Errorf("%s: %+v", name, test.got)
		}
	}
	// Nothing is asked of a bubblewrap that is not there.
	missing := &Spec{Bubblewrap: "/does/not/exist", NoOverlay: "it is old"}
	if findings := missing.CheckMachine(t.Context()); len(findings) != 3 {
		t.Errorf("%+v", findings)
	}
}

func TestWriteFindings_IsOneObject(t *testing.T) {
	var out bytes.Buffer
	must.Do(t, WriteFindings(&out, []Finding{{Name: "a", OK: true, Needed: true, Found: "<b>"}, {Name: "c", Found: "d", Fix: "e"}}))
	const want = `{"findings":[{"name":"a","ok":true,"needed":true,"found":"<b>"},{"name":"c","ok":false,"needed":false,"found":"d","fix":"e"}]}` + "\n"
	if out.String() != want || !json.Valid(out.Bytes()) {
		t.Errorf("wrote %s", &out)
	}
}

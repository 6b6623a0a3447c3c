package jail

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func valid() Spec {
	return Spec{
		Schema:       Schema,
		Bubblewrap:   "/nix/store/b/bin/bwrap",
		Seccomp:      "/nix/store/f-filter",
		Flags:        []string{"--unshare-user", "--setenv", "A", "with space\nand line"},
		Seal:         []string{"--remount-ro", "/"},
		ProjectMount: "/project",
		InboxMount:   "/inbox",
		Reserved:     []string{"/inbox", "/nix", "/proc", "/workspace"},
		Overlay: &Overlay{
			Flags: []string{"--tmpfs", "/layer"}, HostDir: "/host",
			Upper: "/layer/upper", Work: "/layer/work", Option: "--layer",
		},
		Workspace: &Workspace{
			Mount: "/workspace", Holder: []string{"--tmpfs", "/workspace"},
			Layer: []string{"--tmpfs", "/layer"}, Project: "/project",
			Flags: []string{"--unshare-user"}, Join: []string{"--dir", "/shared"}, At: "/shared", HostDir: "/host",
		},
		Command: []string{"/nix/store/a/bin/agent", "run"},
	}
}

// text is a description as the build writes it, after a change of its fields.
func text(t testing.TB, change func(fields map[string]any)) []byte {
	t.Helper()
	encoded := must.Get(json.Marshal(valid()))(t)
	fields := map[string]any{}
	must.Do(t, json.Unmarshal(encoded, &fields))
	change(fields)
	return append([]byte("#!/nix/store/j/bin/nix-sandbox-jail\n"), must.Get(json.Marshal(fields))(t)...)
}

func TestParseSpec(t *testing.T) {
	got := must.Get(ParseSpec(append(text(t, func(map[string]any) {}), '\n')))(t)
	if diff := cmp.Diff(valid(), *got); diff != "" {
		t.Error(diff)
	}
}

func TestParseSpecRefuses(t *testing.T) {
	set := func(field string, value any) []byte {
		return text(t, func(fields map[string]any) { fields[field] = value })
	}
	whole := text(t, func(map[string]any) {})
	for name, test := range map[string]struct {
		text []byte
		want string
	}{
		"nothing":         {nil, "#! line"},
		"one line":        {[]byte("#!/bin/jail"), "#! line"},
		"a script":        {[]byte("#!/bin/sh\nexec true\n"), "invalid character"},
		"another file":    {[]byte("ELF\n{}"), "#! line"},
		"another schema":  {set("schema", 2), "schema is 2"},
		"unknown field":   {set("networks", "host"), `unknown field "networks"`},
		"wrong type":      {set("flags", "--unshare-all"), "cannot unmarshal"},
		"no flags":        {set("flags", []string{}), "empty"},
		"no seal":         {set("seal", nil), "empty"},
		"no reserved":     {set("reserved", nil), "empty"},
		"bwrap by name":   {set("bubblewrap", "bwrap"), "absolute path"},
		"no filter":       {set("seccomp", nil), "seccomp is"},
		"filter by name":  {set("seccomp", "filter"), "seccomp is"},
		"no command":      {set("command", nil), "absolute path"},
		"command by name": {set("command", []string{"agent"}), "absolute path"},
		"two objects":     {append(whole, "{}"...), "follows"},
		"words after it":  {append(whole, "x"...), "follows"},
		"half an overlay": {set("overlay", map[string]any{"upper": "/layer"}), "empty"},
		"cut short":       {whole[:len(whole)-1], "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			spec, err := ParseSpec(test.text)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("spec %v, error %v, want one with %q", spec, err, test.want)
			}
		})
	}
}

func TestReadSpecNamesTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "run")
	must.Do(t, os.WriteFile(name, []byte("#!/bin/sh\n"), 0o600))
	_, err := ReadSpec(name)
	if err == nil || !strings.Contains(err.Error(), name) || HintOf(err) == "" {
		t.Errorf("error %v with hint %q, want the file's name and a hint", err, HintOf(err))
	}
}

// Whatever the bytes, a spec that is accepted can start something and no
// more than that: an absolute program, sealed, from a file of our format.
func FuzzParseSpec(f *testing.F) {
	f.Add(text(f, func(map[string]any) {}))
	f.Add([]byte("#!/bin/sh\n"))
	f.Add([]byte("#!\n{\"schema\":1}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		spec, err := ParseSpec(text)
		if err != nil {
			return
		}
		if !filepath.IsAbs(spec.Command[0]) || !filepath.IsAbs(spec.Bubblewrap) || !filepath.IsAbs(spec.Seccomp) || len(spec.Seal) == 0 || spec.Schema != Schema {
			t.Errorf("accepted %+v", spec)
		}
	})
}

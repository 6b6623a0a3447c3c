package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// folder writes a driver's folder with a program in it.
func folder(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"driver.json": text, "driver.x": "code"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "folder"), 0o755))
	return dir
}

func TestLoad_ReadsEveryField(t *testing.T) {
	dir := folder(t, `{"program": "driver.x", "arguments": ["-a", ""], "control": 253, "warm": "1", "reseed": "2", "refuses_nul": true, "repeat_interrupt": true}`)
	want := &driver.Driver{
		Program: filepath.Join(dir, "driver.x"), Arguments: []string{"-a", ""}, Control: 253, Warm: "1",
		Reseed:     "2",
		RefusesNUL: true, RepeatInterrupt: true,
	}
	got := must.Get(driver.Load(dir))(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestLoad_NamesWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		``:                            "EOF",
		`[]`:                          "array",
		`{"program": "driver.x"`:      "unexpected EOF",
		`{"program": 1}`:              "program",
		`{"programm": "driver.x"}`:    `unknown field "programm"`,
		`{"arguments": ["a", 1]}`:     "arguments",
		`{"control": 3, "warm": "1"}`: `program is "", it must be the name of a file beside it`,
		`{"program": "../x"}`:         `program is "../x"`,
		`{"program": "/etc/passwd"}`:  `program is "/etc/passwd"`,
		`{"program": "driver.x"}`:     "control is 0, it must be from 3 to 253",
		`{"program": "driver.x", "control": 254}`:                                     "control is 254",
		`{"program": "driver.x", "control": 3}`:                                       "warm is missing",
		`{"program": "driver.x", "control": 3, "warm": "1", "arguments": ["\u0000"]}`: "NUL byte",
		`{"program": "nothing", "control": 3, "warm": "1"}`:                           "no such file",
		`{"program": "folder", "control": 3, "warm": "1"}`:                            "which is not a file",
		`{"program": "driver.x", "control": 3, "warm": "1"} {}`:                       "something follows",
		`{"warm": "` + strings.Repeat("x", 64<<10) + `"}`:                             "larger than its limit of 65536 bytes",
	} {
		if got, err := driver.Load(folder(t, text)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "driver.json") {
			t.Errorf("%.100s: %+v, %v, want an error that says %q", text, got, err, want)
		}
	}
	if _, err := driver.Load("/nowhere"); err == nil || !strings.Contains(err.Error(), "/nowhere/driver.json") {
		t.Errorf("no folder: %v", err)
	}
}

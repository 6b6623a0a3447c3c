package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestMemory_KeepsWhatAStartShowed(t *testing.T) {
	for _, known := range []Known{{Works: true}, {Problem: "/dev/kvm cannot be opened: permission denied"}} {
		m := Memory{Folder: filepath.Join(t.TempDir(), "cache", "vm")}
		if got, found := m.Recall(); found {
			t.Errorf("an empty folder remembers %+v", got)
		}
		must.Do(t, m.Remember(known))
		if got, found := m.Recall(); !found || got != known {
			t.Errorf("it remembers %+v, %v, want %+v", got, found, known)
		}
		entries := must.Get(os.ReadDir(m.Folder))(t)
		if len(entries) != 1 {
			t.Errorf("the folder has %v, want one file", entries)
		}
	}
}

// What was found before the computer started, and what makes no sense, is not known.
func TestMemory_ForgetsWithTheBoot(t *testing.T) {
	m := Memory{Folder: t.TempDir()}
	for _, text := range []string{"", "00000000-0000-4000-8000-000000000000 works", "\x00\xff", strings.Repeat("x", 1<<20)} {
		must.Write(t, m.file(), text, 0o600)
		if got, found := m.Recall(); found {
			t.Errorf("from %.40q it remembers %+v", text, got)
		}
	}
	if _, found := (Memory{}).Recall(); found {
		t.Error("no folder remembers something")
	}
	must.Do(t, Memory{}.Remember(Known{Works: true}))
}

func TestParseSpec_NamesWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:      "#!",
		"#!x\n{}": "schema",
		"#!x\n{\"schema\":1,\"board\":\"microvm\"}":                                                           "cpu",
		"#!x\n{\"schema\":1,\"board\":\"microvm\",\"cpu\":\"max\",\"memory_mb\":0}":                           "memory_mb",
		"#!x\n{\"schema\":1,\"memory\":1}":                                                                    "unknown field",
		"#!x\n{\"schema\":1} {}":                                                                              "follows",
		"#!x\n{\"schema\":1,\"board\":\"microvm\",\"cpu\":\"max\",\"memory_mb\":384}":                         "jail",
		"#!x\n{\"schema\":1,\"board\":\"microvm\",\"cpu\":\"max\",\"memory_mb\":384,\"jail\":{\"schema\":1}}": "jail: bubblewrap",
	} {
		if _, err := parseSpec([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, want %q in it", text, err, want)
		}
	}
}

// What a machine prints is kept to its end, and is one line.
func TestLastBytes_KeepsTheEnd(t *testing.T) {
	var l lastBytes
	for range 100 {
		_, _ = l.Write([]byte(strings.Repeat("long \x1b[2J", 1000)))
	}
	_, _ = l.Write([]byte("\n[  1.0] Out of\tmemory\r\n"))
	if got := l.last(); len(l.text) > consoleBytes || !strings.HasSuffix(got, "[ 1.0] Out of memory") || strings.ContainsAny(got, "\n\r\x1b") {
		t.Errorf("%d bytes are kept, the end is %q", len(l.text), got)
	}
	_, _ = l.Write([]byte("[  1.1] Kernel panic - not syncing: a\x1btest\r\n" + strings.Repeat("[  1.2] a register\r\n", 100)))
	if got, want := l.last(), "Kernel panic - not syncing: a test"; got != want {
		t.Errorf("of a panic it says %q, want %q", got, want)
	}
}

package sessions

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// A patch shows every invisible character, also those that join emoji: a name that a reviewer does
// not see must not hide in a line.
func TestWritePretty_ShowsInvisibleCharacters(t *testing.T) {
	dir := t.TempDir()
	store := must.Get(changes.Open(filepath.Join(dir, "changes"), slog.New(slog.DiscardHandler)))(t)
	for _, name := range []string{"project", "upper"} {
		must.Do(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, "upper", "a.js"), []byte("const { check,\u3164} = x // \u202e\u200d\ufe0f\u2800\u00a0\x1b[8m\n"), 0o644))
	record := must.Get(store.Begin(changes.Head{Key: changes.Key{Session: "s"}, Project: filepath.Join(dir, "project")}, must.Get(os.Open(filepath.Join(dir, "upper")))(t)))(t)
	defer record.Close()
	record.Save(t.Context(), time.Now())
	entries, _ := changes.List(filepath.Join(dir, "changes"))
	if len(entries) != 1 {
		t.Fatalf("%d patches", len(entries))
	}
	defer entries[0].Close()
	var out bytes.Buffer
	writePretty(&out, entries[0], false)
	if want := "+const { check,<U+3164>} = x // <U+202E><U+200D><U+FE0F><U+2800><U+00A0>^[[8m\n"; !strings.Contains(out.String(), want) {
		t.Errorf("%q lacks %q", &out, want)
	}
}

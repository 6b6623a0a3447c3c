package changes_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// The store is bounded while its server runs, and the principal with the most loses its
// oldest patches.
func TestStore_IsBoundedWhileSessionsGoOn(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.Mkdir(filepath.Join(dir, "changes"), 0o777))
	must.Do(t, os.Chmod(filepath.Join(dir, "changes"), 0o777))
	store := must.Get(changes.Open(filepath.Join(dir, "changes"), slog.New(slog.NewTextHandler(t.Output(), nil))))(t)
	if info := must.Get(os.Stat(filepath.Join(dir, "changes")))(t); info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has the mode %v", info.Mode())
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "project"), 0o755))
	save := func(principal, session string) {
		upper := filepath.Join(dir, "upper-"+session)
		must.Do(t, os.Mkdir(upper, 0o755))
		must.Do(t, os.WriteFile(filepath.Join(upper, "new.py"), fmt.Appendf(nil, "%01000d\n", 0), 0o644))
		record := must.Get(store.Begin(changes.Head{Key: changes.Key{Principal: principal, Session: session}, Project: filepath.Join(dir, "project")}, must.Get(os.Open(upper))(t)))(t)
		t.Cleanup(record.Close)
		record.Early()
		record.Save(context.Background(), time.Now())
		time.Sleep(5 * time.Millisecond) // the next one is younger
	}
	left := func() (names []string) {
		entries, broken := changes.List(filepath.Join(dir, "changes"))
		if len(broken) > 0 {
			t.Error(broken)
		}
		for _, entry := range entries {
			names = append(names, entry.Session)
			entry.Close()
		}
		return names
	}
	store.SetBounds(5, 1<<20)
	save("bob", "thesis")
	for i := range 20 {
		save("alice", fmt.Sprint("a", i))
	}
	if diff := cmp.Diff([]string{"a19", "a18", "a17", "a16", "thesis"}, left()); diff != "" {
		t.Errorf("of many patches: %s", diff)
	}
	store.SetBounds(1000, 4<<10)
	save("alice", "large")
	if got := left(); len(got) > 4 || got[len(got)-1] != "thesis" {
		t.Errorf("of many bytes: %v", got)
	}
}

// Whatever a file in the folder has, it is an entry or an error.
func FuzzList(f *testing.F) {
	f.Add([]byte("nix-sandbox-mcp changes 1\n{\"size\": 0}\n\n"))
	f.Add([]byte("nix-sandbox-mcp changes 1\n{}\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		must.Do(t, os.WriteFile(filepath.Join(dir, "a.patch"), content, 0o600))
		entries, broken := changes.List(dir)
		if len(entries)+len(broken) != 1 {
			t.Errorf("%d entries, errors %v", len(entries), broken)
		}
		for _, entry := range entries {
			entry.Close()
		}
	})
}

// The model is told of changes once: when there are some that a user would take, not caches alone.
func TestRecord_TellsOfChangesThatAreMoreThanCaches(t *testing.T) {
	dir := t.TempDir()
	store := must.Get(changes.Open(filepath.Join(dir, "changes"), slog.New(slog.NewTextHandler(t.Output(), nil))))(t)
	upper := filepath.Join(dir, "upper")
	must.Do(t, os.Mkdir(filepath.Join(dir, "project"), 0o755))
	must.Do(t, os.Mkdir(upper, 0o755))
	record := must.Get(store.Begin(changes.Head{Key: changes.Key{Session: "s"}, Project: filepath.Join(dir, "project")}, must.Get(os.Open(upper))(t)))(t)
	defer record.Close()
	for _, step := range []struct {
		name string
		want bool
	}{{"words/__pycache__/a.pyc", false}, {".pytest_cache/README.md", false}, {".venv/bin/python", false}, {".github/workflows/ci.yml", true}, {"words/a.py", false}} {
		must.Do(t, os.MkdirAll(filepath.Dir(filepath.Join(upper, step.name)), 0o755))
		must.Do(t, os.WriteFile(filepath.Join(upper, step.name), []byte("x"), 0o644))
		if summary, first, _ := record.Early(); summary == nil || first != step.want {
			t.Errorf("%s: %+v, first %v", step.name, summary, first)
		}
	}
}

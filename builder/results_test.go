package builder

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// If the environments take too much, the principal with most of them loses its oldest, and not
// somebody else with an older environment.
func TestExpire_LeavesOthersTheirs(t *testing.T) {
	folder := t.TempDir()
	artifact := filepath.Join(t.TempDir(), "artifact")
	must.Do(t, os.Mkdir(artifact, 0o755))
	must.Do(t, os.WriteFile(filepath.Join(artifact, "metadata.json"), []byte(`{"schema":1,"closure_bytes":1048576}`), 0o644))
	var names []string
	for i, principal := range []string{"b", "a", "a", "a", "", "a"} {
		name := fmt.Sprintf("%064x", i)
		at := filepath.Join(folder, name)
		names = append(names, name)
		must.Do(t, os.Mkdir(at, 0o755))
		must.Do(t, os.Symlink(artifact, filepath.Join(at, order.ResultLink)))
		must.Do(t, os.WriteFile(filepath.Join(at, order.UsedFile), []byte(strings.Repeat(principal, 16)+"\n"), 0o644))
		used := time.Now().Add(time.Duration(i-10) * time.Minute)
		must.Do(t, os.Chtimes(filepath.Join(at, order.UsedFile), used, used))
	}
	expire := func(most int64) (left []string) {
		t.Helper()
		(&results{folder}).expire(order.Bounds{KeepDays: 30, KeepMB: most})
		for _, entry := range must.Get(os.ReadDir(folder))(t) {
			left = append(left, entry.Name())
		}
		return left
	}
	if diff := cmp.Diff(names, expire(6)); diff != "" {
		t.Errorf("there is room: %s", diff)
	}
	if diff := cmp.Diff([]string{names[0], names[3], names[4], names[5]}, expire(4)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{names[5]}, expire(0)); diff != "" {
		t.Errorf("the one used last: %s", diff)
	}
}

// What no call has used for the days of the bounds goes, and what was never built after a day.
func TestExpire_ForgetsTheOld(t *testing.T) {
	folder := t.TempDir()
	made := func(name, file string, age time.Duration, result bool) {
		at := filepath.Join(folder, name)
		must.Write(t, filepath.Join(at, order.UsedFile), "", 0o644)
		if result {
			must.Do(t, os.Symlink(t.TempDir(), filepath.Join(at, order.ResultLink)))
		}
		then := time.Now().Add(-age)
		must.Do(t, os.Chtimes(filepath.Join(at, file), then, then))
	}
	key := func(letter string) string { return strings.Repeat(letter, 64) }
	made(key("a"), order.UsedFile, 29*day, true)
	made(key("b"), order.UsedFile, 31*day, true)
	made(key("c"), "", 23*time.Hour, false)
	made(key("d"), "", 25*time.Hour, false)
	made(gone+key("e"), order.UsedFile, 0, false)
	made("notes", order.UsedFile, 90*day, false)
	(&results{folder}).expire(order.Bounds{KeepDays: 30, KeepMB: 1})
	var left []string
	for _, entry := range must.Get(os.ReadDir(folder))(t) {
		left = append(left, entry.Name())
	}
	if diff := cmp.Diff([]string{key("a"), key("c"), "notes"}, left); diff != "" {
		t.Error(diff)
	}
}

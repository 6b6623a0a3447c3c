package packages

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// built writes a request and the builder's result, and returns the folder of both.
func built(t *testing.T, folder string, base registry.Environment, name Name) string {
	t.Helper()
	at := filepath.Join(folder, Key(base, name))
	must.Do(t, os.MkdirAll(at, 0o755))
	request := must.Get(json.Marshal(Request{Base: name.Base, Recipe: recipe(base), Packages: name.Packages}))(t)
	put(t, at, RequestFile, string(request))
	must.Do(t, os.Symlink(base.OnDemand.Folder, filepath.Join(at, ResultLink)))
	return at
}

func TestBuilt(t *testing.T) {
	folder := t.TempDir()
	python := environment(t)
	python.Name, python.Base, python.Added = "python", "", nil
	python.OnDemand = &registry.OnDemand{Names: []string{"pandas", "tree"}, Folder: python.OnDemand.Folder}
	set := map[string]registry.Environment{"python": python}
	names := func() (names []string) {
		for _, env := range Built(folder, set) {
			if env.SessionExec == "" || env.Base != "python" {
				t.Errorf("%+v", env)
			}
			names = append(names, env.Name)
		}
		return names
	}
	at := built(t, folder, python, Name{"python", []string{"pandas"}})
	built(t, folder, python, Name{"gone", []string{"pandas"}})          // of an environment that does not exist
	built(t, folder, python, Name{"python", []string{"torch"}})         // not on the list any more
	built(t, folder, python, Name{"python", []string{"tree", "../.."}}) // no name
	must.Do(t, os.MkdirAll(filepath.Join(folder, "notes"), 0o755))
	if diff := cmp.Diff([]string{"python+pandas"}, names()); diff != "" {
		t.Error(diff)
	}

	// An artifact that Nix has collected as garbage is not usable.
	must.Do(t, os.Remove(filepath.Join(at, ResultLink)))
	must.Do(t, os.Symlink("/nowhere", filepath.Join(at, ResultLink)))
	if names := names(); len(names) > 0 {
		t.Errorf("%q", names)
	}
}

// If the environments take too much, the principal with most of them loses its oldest, and not
// somebody else whose environment is older.
func TestExpire_LeavesOthersTheirs(t *testing.T) {
	folder := t.TempDir()
	artifact := filepath.Join(t.TempDir(), "artifact")
	must.Do(t, os.Mkdir(artifact, 0o755))
	must.Do(t, os.WriteFile(filepath.Join(artifact, "metadata.json"), []byte(`{"schema":1,"closure_bytes":1000}`), 0o644))
	var names []string
	for i, principal := range []string{"b", "a", "a", "a", "", "a"} {
		name := fmt.Sprintf("%064x", i)
		at := filepath.Join(folder, name)
		names = append(names, name)
		must.Do(t, os.Mkdir(at, 0o755))
		must.Do(t, os.Symlink(artifact, filepath.Join(at, ResultLink)))
		must.Do(t, os.WriteFile(filepath.Join(at, UsedFile), []byte(strings.Repeat(principal, 16)+"\n"), 0o644))
		used := time.Now().Add(time.Duration(i-10) * time.Minute)
		must.Do(t, os.Chtimes(filepath.Join(at, UsedFile), used, used))
	}
	expire := func(most int) []string {
		t.Helper()
		command := exec.Command("bash", "-c", `set -u; . ../../nix/wrapper/derive.sh; bounds[4]=$1; expire`, "bash", fmt.Sprint(most))
		command.Env = append(os.Environ(), "NIX_SANDBOX_PACKAGES="+folder)
		if out, err := command.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%v: %s", err, out)
		}
		return Keys(folder)
	}
	if diff := cmp.Diff(names, expire(6000)); diff != "" {
		t.Errorf("there is room: %s", diff)
	}
	if diff := cmp.Diff([]string{names[0], names[3], names[4], names[5]}, expire(4000)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{names[5]}, expire(1)); diff != "" {
		t.Errorf("the one used last: %s", diff)
	}
}

// Calls that ask for packages and are cancelled leave a bounded number of folders, and hide none of
// those that are built.
func TestPending_IsBounded(t *testing.T) {
	folder := t.TempDir()
	key := func(n int) string { return fmt.Sprintf("%064x", n) }
	for n := range 3000 {
		must.Do(t, os.Mkdir(filepath.Join(folder, key(n)), 0o700))
		if n >= maxPending-1 {
			must.Do(t, os.Symlink("/nowhere", filepath.Join(folder, key(n), ResultLink)))
		}
	}
	if n := len(Keys(folder)); n != 3000 {
		t.Errorf("%d keys", n)
	}
	if isCrowded(folder) {
		t.Error("one more cannot be asked for")
	}
	env := registry.Environment{OnDemand: &registry.OnDemand{}}
	e := NewExecutor(nil, Options{Folder: folder, Ask: func(string) error { return nil }})
	if err := e.order(env, key(5000)); err != nil {
		t.Error(err)
	}
	if err := e.order(env, key(5001)); err == nil || !strings.Contains(err.Error(), "200 other environments") {
		t.Errorf("beyond the bound: %v", err)
	}
	if err := e.order(env, key(1)); err != nil {
		t.Errorf("one that was asked for already: %v", err)
	}
}

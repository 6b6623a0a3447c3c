package packages

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// built writes a request and the builder's result, and returns the folder of both.
func built(t *testing.T, folder string, base registry.Environment, name Name) string {
	t.Helper()
	at := filepath.Join(folder, Key(base, name))
	must.Do(t, os.MkdirAll(at, 0o755))
	request := must.Get(json.Marshal(Request{Base: name.Base, Recipe: recipe(base), Packages: name.Packages}))(t)
	must.Do(t, os.WriteFile(filepath.Join(at, order.RequestFile), request, 0o644))
	must.Do(t, os.Symlink(base.OnDemand.Folder, filepath.Join(at, order.ResultLink)))
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
	must.Do(t, os.Remove(filepath.Join(at, order.ResultLink)))
	must.Do(t, os.Symlink("/nowhere", filepath.Join(at, order.ResultLink)))
	if names := names(); len(names) > 0 {
		t.Errorf("%q", names)
	}
}

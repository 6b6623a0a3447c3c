package registry

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestParseDerived_HasOneForm(t *testing.T) {
	for text, want := range map[string]string{
		"python+pandas":                 "python+pandas",
		"python+pandas+pandas":          "python+pandas",
		"python+matplotlib+pandas":      "python+matplotlib+pandas",
		"python+pandas+matplotlib":      "python+matplotlib+pandas",
		"a+_7zz+R+x-y_z":                "a+R+_7zz+x-y_z",
		strings.Repeat("a+", 100) + "a": "a+a",
	} {
		if derived, err := ParseDerived(text); err != nil || derived.String() != want {
			t.Errorf("%q is %q, %v; want %q", text, derived, err, want)
		}
	}
}

func TestParseDerived_RefusesWhatIsNoName(t *testing.T) {
	many := "python"
	for i := range 200 {
		many += "+p" + strings.Repeat("q", i)
	}
	for text, want := range map[string]*DerivedNameError{
		"python+":                             {Blank: true},
		"+pandas":                             {Blank: true},
		"python++pandas":                      {Blank: true},
		"python+../../x":                      {Part: "../../x"},
		"python+a.b":                          {Part: "a.b"},
		"python+a b":                          {Part: "a b"},
		"python+-a":                           {Part: "-a"},
		"python+раndas":                       {Part: "раndas"}, // with Cyrillic letters
		"python+pandas\n":                     {Part: "pandas\n"},
		"python+${x}":                         {Part: "${x}"},
		"Python+pandas":                       {Part: "Python"},
		"python+" + strings.Repeat("a", 65):   {Part: strings.Repeat("a", 65)},
		"python+" + strings.Repeat("a", 10e3): {},
		many:                                  {},
		"python+a+b+c+d+e+f+g+h+i+j+k+l+m+n+o+p+q": {},
	} {
		derived, err := ParseDerived(text)
		var name *DerivedNameError
		if !errors.As(err, &name) || *name != *want {
			t.Errorf("%.100q is %v, %v; want %v", text, derived, err, want)
		}
	}
}

// What is parsed has one form, is allowed in a file's name, and stays what it is.
func FuzzParseDerived(f *testing.F) {
	for _, seed := range []string{"python+pandas", "a+b+a", "python+../../x", "+", "a+\xff", "python+" + strings.Repeat("b+", 300)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		derived, err := ParseDerived(text)
		if err != nil {
			return
		}
		canonical := derived.String()
		again, err := ParseDerived(canonical)
		if err != nil || again.String() != canonical {
			t.Fatalf("%q is %q, and that %q, %v", text, canonical, again, err)
		}
		if len(canonical) > maxDerived || len(derived.Packages) > MaxPackages || strings.Trim(canonical, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+") != "" {
			t.Fatalf("%q is %q", text, canonical)
		}
	})
}

// allowing is what an artifact allows whose table is given.
func allowing(t *testing.T, table string, allowed OnDemand) *OnDemand {
	t.Helper()
	allowed.Folder = t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(allowed.Folder, "packages.json"), []byte(table), 0o644))
	return &allowed
}

const packages = `{"names": ["pandas", "beautifulsoup4", "scikit-learn", "ripgrep", "../x"], "modules": {"bs4": "beautifulsoup4", "sklearn": "scikit-learn", "evil": "../x"},
	"modules_by_name": true, "programs": {"rg": "ripgrep"}}`

func TestOnDemand_ChecksNames(t *testing.T) {
	all := allowing(t, packages, OnDemand{All: true})
	list := allowing(t, packages, OnDemand{Names: []string{"pandas"}})
	for _, test := range []struct {
		allowed *OnDemand
		name    string
		want    *PackageError
	}{
		{all, "python+pandas+ripgrep", nil},
		{list, "python+pandas", nil},
		{list, "python+pandas+ripgrep", &PackageError{Env: "python", Package: "ripgrep", Listed: true}},
		{list, "python+panda", &PackageError{Env: "python", Package: "panda", Listed: true, Near: []string{"pandas"}}},
		{all, "python+bs4", &PackageError{Env: "python", Package: "bs4", Has: "beautifulsoup4"}},
		{all, "python+rg", &PackageError{Env: "python", Package: "rg", Has: "ripgrep"}},
		{all, "python+scikit_learn", &PackageError{Env: "python", Package: "scikit_learn", Near: []string{"scikit-learn"}}},
		{all, "python+evil", &PackageError{Env: "python", Package: "evil"}},
		{all, "python+writeShellScript", &PackageError{Env: "python", Package: "writeShellScript"}},
	} {
		err := test.allowed.Check(must.Get(ParseDerived(test.name))(t))
		var got *PackageError
		errors.As(err, &got)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %v\n%s", test.name, err, diff)
		}
	}
}

func TestOnDemand_FindsModulesAndPrograms(t *testing.T) {
	all := allowing(t, packages, OnDemand{All: true})
	for name, want := range map[string]string{"bs4": "beautifulsoup4", "sklearn": "scikit-learn", "pandas": "pandas", "Pandas": "pandas", "evil": "", "../x": ""} {
		if got, _ := all.Module(name); got != want {
			t.Errorf("module %q is in %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{"rg": "ripgrep", "ripgrep": "ripgrep", "bs4": ""} {
		if got, _ := all.Program(name); got != want {
			t.Errorf("program %q is in %q, want %q", name, got, want)
		}
	}
	if got, found := allowing(t, `{"names": ["pandas"]}`, OnDemand{All: true}).Module("pandas"); found {
		t.Errorf("a module by the name of a package is in %q, where modules have other names", got)
	}
	if got, found := allowing(t, "{", OnDemand{All: true}).Module("pandas"); found {
		t.Errorf("a table that is no JSON has %q", got)
	}
}

func TestOnDemand_IsRead(t *testing.T) {
	for _, test := range []struct {
		value any
		want  *OnDemand
		err   string
	}{
		{nil, nil, ""},
		{[]string{}, nil, ""},
		{"all", &OnDemand{All: true}, ""},
		{[]string{"pandas"}, &OnDemand{Names: []string{"pandas"}}, ""},
		{[]string{"../x"}, nil, "must be the name of a package"},
		{"some", nil, "must be an array"},
	} {
		environment := entry(t, map[string]any{"packages_on_demand": test.value})
		set := must.Get(Read(document(t, map[string]any{"python": environment}, nil)))(t)
		got := set.Environments["python"].OnDemand
		if test.err != "" {
			if err := reason(set, "python"); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%v: %v", test.value, err)
			}
			continue
		}
		if test.want != nil {
			test.want.Folder = filepath.Dir(filepath.Dir(environment["exec"].(string)))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%v: %s", test.value, diff)
		}
	}
}

// built writes what a runtime asked for and the builder made of it, and returns the
// folder of it.
func built(t *testing.T, packages, base string, env Environment, names ...string) string {
	t.Helper()
	derived := Derived{base, names}
	folder := filepath.Join(packages, env.OnDemand.Key(derived))
	must.Do(t, os.MkdirAll(folder, 0o755))
	request := must.Get(json.Marshal(Request{Base: base, Recipe: env.OnDemand.Recipe(), Packages: names}))(t)
	must.Do(t, os.WriteFile(filepath.Join(folder, RequestFile), request, 0o644))
	link(t, filepath.Dir(filepath.Dir(env.Exec)), filepath.Join(folder, ResultLink))
	return folder
}

func TestSet_HasDerivedEnvironments(t *testing.T) {
	sandboxes, packages := t.TempDir(), t.TempDir()
	fields := map[string]any{"schema": 1, "name": "python", "backend": "jail", "packages_on_demand": []string{"pandas", "tree"}}
	for key, value := range mcptest.Settings(nil)["defaults"].(map[string]any) {
		fields[key] = value
	}
	writeArtifact(t, sandboxes, "python", fields)
	folders := Folders{Folders: []string{sandboxes}, Packages: packages}
	before := folders.Fingerprint()
	set := must.Get(base(t).With(folders))(t)
	python := set.Environments["python"]

	folder := built(t, packages, "python", python, "pandas")
	built(t, packages, "gone", python, "pandas")          // of an environment that there is not
	built(t, packages, "python", python, "torch")         // not on the list any more
	built(t, packages, "python", python, "tree", "../..") // no name
	must.Do(t, os.MkdirAll(filepath.Join(packages, "notes"), 0o755))
	if folders.Fingerprint() == before {
		t.Error("the fingerprint is that without the environment")
	}
	set = must.Get(base(t).With(folders))(t)
	if diff := cmp.Diff([]string{"python+pandas"}, names(set.Derived)); diff != "" {
		t.Fatal(diff)
	}
	now := New(set).Now()
	env, ok := now.Derived("python+pandas")
	if !ok || env.Name != "python+pandas" || env.SessionExec == "" || env.Derived.String() != env.Name {
		t.Errorf("%v %+v", ok, env)
	}
	if diff := cmp.Diff([]string{"python"}, now.Names()); diff != "" {
		t.Error("it is among the environments that are offered: " + diff)
	}

	// An artifact that Nix has collected as garbage is not usable.
	must.Do(t, os.Remove(filepath.Join(folder, ResultLink)))
	link(t, "/nowhere", filepath.Join(folder, ResultLink))
	if set = must.Get(base(t).With(folders))(t); len(set.Derived) != 0 {
		t.Errorf("%v", names(set.Derived))
	}
}

func names(environments map[string]Environment) (list []string) {
	for name := range environments {
		list = append(list, name)
	}
	return list
}

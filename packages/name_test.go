package packages

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestParse_HasOneForm(t *testing.T) {
	for text, want := range map[string]string{
		"python+pandas":                 "python+pandas",
		"python+pandas+pandas":          "python+pandas",
		"python+matplotlib+pandas":      "python+matplotlib+pandas",
		"python+pandas+matplotlib":      "python+matplotlib+pandas",
		"a+_7zz+R+x-y_z":                "a+R+_7zz+x-y_z",
		strings.Repeat("a+", 100) + "a": "a+a",
	} {
		if derived, err := Parse(text); err != nil || derived.String() != want {
			t.Errorf("%q is %q, %v; want %q", text, derived, err, want)
		}
	}
}

func TestParse_RefusesWhatIsNoName(t *testing.T) {
	many := "python"
	for i := range 200 {
		many += "+p" + strings.Repeat("q", i)
	}
	for text, want := range map[string]*NameError{
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
		derived, err := Parse(text)
		var name *NameError
		if !errors.As(err, &name) || *name != *want {
			t.Errorf("%.100q is %v, %v; want %v", text, derived, err, want)
		}
	}
}

// What is parsed has one form, is allowed in a file's name, and stays what it is.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"python+pandas", "a+b+a", "python+../../x", "+", "a+\xff", "python+" + strings.Repeat("b+", 300)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		derived, err := Parse(text)
		if err != nil {
			return
		}
		canonical := derived.String()
		again, err := Parse(canonical)
		if err != nil || again.String() != canonical {
			t.Fatalf("%q is %q, and that %q, %v", text, canonical, again, err)
		}
		if len(canonical) > maxName || len(derived.Packages) > MaxPackages || strings.Trim(canonical, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+") != "" {
			t.Fatalf("%q is %q", text, canonical)
		}
	})
}

// allowing returns what an artifact with this table allows.
func allowing(t *testing.T, table string, some registry.OnDemand) allowed {
	t.Helper()
	some.Folder = t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(some.Folder, "packages.json"), []byte(table), 0o644))
	return allowed{&some}
}

const tableText = `{"names": ["pandas", "beautifulsoup4", "scikit-learn", "ripgrep", "../x"], "modules": {"bs4": "beautifulsoup4", "sklearn": "scikit-learn", "evil": "../x"},
	"modules_by_name": true, "programs": {"rg": "ripgrep"}}`

func TestAllowed_ChecksNames(t *testing.T) {
	all := allowing(t, tableText, registry.OnDemand{All: true})
	list := allowing(t, tableText, registry.OnDemand{Names: []string{"pandas"}})
	for _, test := range []struct {
		allowed allowed
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
		err := check(registry.Environment{OnDemand: test.allowed.OnDemand}, must.Get(Parse(test.name))(t))
		var got *PackageError
		errors.As(err, &got)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %v\n%s", test.name, err, diff)
		}
	}
}

func TestAllowed_FindsModulesAndPrograms(t *testing.T) {
	all := allowing(t, tableText, registry.OnDemand{All: true})
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
	if got, found := allowing(t, `{"names": ["pandas"]}`, registry.OnDemand{All: true}).Module("pandas"); found {
		t.Errorf("a module by the name of a package is in %q, where modules have other names", got)
	}
	if got, found := allowing(t, "{", registry.OnDemand{All: true}).Module("pandas"); found {
		t.Errorf("a table that is no JSON has %q", got)
	}
}

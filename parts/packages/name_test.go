package packages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	const missing, noName, tooMany = "a name is missing beside a +", " is no name of a", "these are too many packages"
	for text, want := range map[string]string{
		"python+":                             missing,
		"+pandas":                             missing,
		"python++pandas":                      missing,
		"python+../../x":                      `"../../x"` + noName + " package",
		"python+a.b":                          `"a.b"` + noName,
		"python+a b":                          `"a b"` + noName,
		"python+-a":                           `"-a"` + noName,
		"python+раndas":                       `"раndas"` + noName, // with Cyrillic letters
		"python+pandas\n":                     `"pandas\n"` + noName,
		"python+${x}":                         `"${x}"` + noName,
		"Python+pandas":                       `"Python"` + noName + "n environment",
		"python+" + strings.Repeat("a", 65):   `"` + strings.Repeat("a", 65) + `"` + noName,
		"python+" + strings.Repeat("a", 10e3): tooMany,
		many:                                  tooMany,
		"python+a+b+c+d+e+f+g+h+i+j+k+l+m+n+o+p+q": tooMany,
	} {
		derived, err := Parse(text)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.100q is %v, %v; want %q", text, derived, err, want)
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
		want    string
	}{
		{all, "python+pandas+ripgrep", ""},
		{list, "python+pandas", ""},
		{list, "python+pandas+ripgrep", `env "python" may not have package "ripgrep", which is not in packages_on_demand of [environments.python]: do without`},
		{list, "python+panda", `env "python" may not have package "panda", which is not in packages_on_demand of [environments.python]: did you mean env "python+pandas"?`},
		{all, "python+bs4", `there is no package "bs4": call again with env "python+beautifulsoup4", which has it`},
		{all, "python+rg", `there is no package "rg": call again with env "python+ripgrep", which has it`},
		{all, "python+scikit_learn", `there is no package "scikit_learn": did you mean env "python+scikit-learn"?`},
		{all, "python+evil", `there is no package "evil": use the name`},
		{all, "python+writeShellScript", `there is no package "writeShellScript": use the name`},
	} {
		err := check(registry.Environment{OnDemand: test.allowed.OnDemand}, must.Get(Parse(test.name))(t))
		if (err == nil) != (test.want == "") || err != nil && !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", test.name, err, test.want)
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

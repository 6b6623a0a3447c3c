package tool

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/packages"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// allowing is described with packages that calls may add: a list to python, all to
// bash, none to node. The table is as long as that of nixpkgs.
func allowing(t testing.TB) *registry.Set {
	t.Helper()
	set := described()
	write := func(table map[string]any) string {
		folder := t.TempDir()
		must.Do(t, os.WriteFile(filepath.Join(folder, "packages.json"), must.Get(json.Marshal(table))(t), 0o644))
		return folder
	}
	list := []string{"opencv4", "pandas", "pip", "scikit-learn"}
	all := []string{"jq", "nodejs", "pip", "ripgrep"}
	for i := range 40000 {
		all = append(all, fmt.Sprintf("package-%d", i))
	}
	allow := func(name string, allowed registry.OnDemand) {
		env := set.Environments[name]
		env.OnDemand = &allowed
		set.Environments[name] = env
	}
	allow("python", registry.OnDemand{Names: list, Folder: write(map[string]any{
		"names": list, "modules_by_name": true, "modules": map[string]string{"cv2": "opencv4", "sklearn": "scikit-learn"}, "programs": map[string]string{},
	})})
	allow("bash", registry.OnDemand{All: true, Folder: write(map[string]any{
		"names": all, "modules_by_name": false, "modules": map[string]string{}, "programs": map[string]string{"rg": "ripgrep", "node": "nodejs"},
	})})
	return set
}

// noSession is asked for the environments of a session that is not live.
func noSession(string) []registry.Environment { return nil }

// refusalOf is the sentence for a call of an environment, or "" where it may run.
func refusalOf(l listing, env string) string {
	_, err := l.call(map[string]any{"code": "1", "env": env}, nil)
	if err == nil {
		return ""
	}
	return err.Error()
}

// What models get wrong about packages, and what they read.
func TestPackages_Mistakes(t *testing.T) {
	l := describing(registry.New(allowing(t)), Project{}).list()
	many := "bash"
	for i := range 200 {
		many += fmt.Sprintf("+package-%d", i)
	}
	const listed = `env "python" may not have package %q, which is not in packages_on_demand of [environments.python]: `
	for env, want := range map[string]string{
		"python+opencv4":                      "",
		"python+pandas+opencv4":               "",
		"bash+jq":                             "",
		"node+jq":                             `env "node" takes no further packages: leave "+jq" out, or ask the user to allow it in packages_on_demand of [environments.node]`,
		"python+cv2":                          fmt.Sprintf(listed, "cv2") + `call again with env "python+opencv4", which has it`,
		"python+pandas+sklearn":               fmt.Sprintf(listed, "sklearn") + `call again with env "python+pandas+scikit-learn", which has it`,
		"python+panda":                        fmt.Sprintf(listed, "panda") + `did you mean env "python+pandas"?`,
		"python+torch":                        fmt.Sprintf(listed, "torch") + `do without, or ask the user to allow it there`,
		"python+раndas":                       `"раndas" is no name of a package: use env "python+NAME", with letters, digits, - and _ alone in each name`,
		"python+../../x":                      `"../../x" is no name of a package: use env "python+NAME", with letters, digits, - and _ alone in each name`,
		"python+":                             `a name is missing beside a +: use env "python+NAME", or "python" alone`,
		"bash+rg":                             `there is no package "rg": call again with env "bash+ripgrep", which has it`,
		"bash+package-":                       `there is no package "package-": did you mean package-0, package-1, package-2?`,
		"bash+lib":                            `there is no package "lib": use the name that the package has in nixpkgs, or do without`,
		"bash+writeShellScript":               `there is no package "writeShellScript": use the name that the package has in nixpkgs, or do without`,
		"bash+python3Packages.numpy":          `"python3Packages.numpy" is no name of a package: use env "bash+NAME", with letters, digits, - and _ alone in each name`,
		many:                                  `these are too many packages: name at most 16, in at most 200 bytes`,
		"bash+" + strings.Repeat("a+b", 3000): `these are too many packages: name at most 16, in at most 200 bytes`,
		"ruby+rails":                          refusalOf(l, "ruby+rails"), // as without packages: see the next test
	} {
		if got := refusalOf(l, env); got != want {
			t.Errorf("%.60s: %s\nwant %s", env, got, want)
		}
	}
}

// Where no environment allows packages, a plus is a letter like others.
func TestPackages_NoneAllowed(t *testing.T) {
	with := describing(registry.New(allowing(t)), Project{}).list()
	without := describing(registry.New(described()), Project{}).list()
	for _, env := range []string{"c++", "ruby+rails", "+", "nothing"} {
		got := refusalOf(without, env)
		if !strings.HasPrefix(got, fmt.Sprintf("there is no env %q", env)) || got != refusalOf(with, env) {
			t.Errorf("%s: %s\n%s", env, got, refusalOf(with, env))
		}
	}
}

// A call of packages has their canonical name, whatever is written.
func TestPackages_OneName(t *testing.T) {
	l := describing(registry.New(allowing(t)), Project{}).list()
	for _, env := range []string{"python+pandas+opencv4", "python+opencv4+pandas", "python+pandas+opencv4+pandas"} {
		arguments := map[string]any{"code": "1", "env": env, "session": "s"}
		c, err := l.call(arguments, noSession)
		if err != nil || c.Env.Name != "python+opencv4+pandas" || c.Env.SessionExec != "" || c.Env.Base != "python" {
			t.Errorf("%s: %+v %v", env, c.Env, err)
		}
		// A session that has it goes on with its artifact.
		has := c.Env
		has.SessionExec = "/its/session-run"
		if c, err := l.call(arguments, func(string) []registry.Environment { return []registry.Environment{has} }); err != nil || c.Env.SessionExec != has.SessionExec {
			t.Errorf("%s in a session that has it: %+v %v", env, c.Env, err)
		}
	}
}

// hostileName makes a name that means harm, or none at all.
func hostileName(random *rand.Rand) string {
	parts := []string{
		"../../x", "/etc/passwd", "lib", "writeShellScript", "$(id)", "`id`", "; rm -rf /", "\x00", "\n", "--option", "-rf", "${builtins.currentTime}", "''${x}", "pаndas", "pandas\u200b",
		"ｐandas", "pandas ", " ", "", "+", "%s%n", "\xff\xfe", "é", "a.b", "a/b", "..", ".", "nul", strings.Repeat("a", 70), strings.Repeat("A", 10<<10), "<nixpkgs>", "\"", "'", "\\",
	}
	text := []string{"python", "bash", "python", "bash", "PYTHON", ""}[random.IntN(6)]
	for range 1 + random.IntN(4) {
		part := parts[random.IntN(len(parts))]
		if random.IntN(3) == 0 {
			letters := make([]byte, random.IntN(300))
			for i := range letters {
				letters[i] = byte(random.IntN(256))
			}
			part = string(letters)
		}
		text += "+" + part
	}
	return text
}

// Names that are none are refused at once, in a bounded sentence.
func TestPackages_HostileNames(t *testing.T) {
	l := describing(registry.New(allowing(t)), Project{}).list()
	refusalOf(l, "bash+x") // reads the table
	random := seed.New(t)
	var slowest time.Duration
	for range 300 {
		name := hostileName(random)
		began := time.Now()
		sentence := refusalOf(l, name)
		slowest = max(slowest, time.Since(began))
		if sentence == "" || len(sentence) > 1000 {
			t.Errorf("%q: %q", name, sentence)
		}
	}
	t.Logf("the slowest of 300 took %v", slowest)
}

func TestPackages_WhyNothingWasBuilt(t *testing.T) {
	l := describing(registry.New(allowing(t)), Project{}).list()
	env := must.Get(l.call(map[string]any{"code": "1", "env": "bash+jq"}, nil))(t).Env
	for _, test := range []struct {
		err  packages.BuildError
		want string
	}{
		{packages.BuildError{Kind: order.Absent, Package: "package-x"}, `there is no package "package-x": did you mean package-0, package-1, package-2?`},
		{packages.BuildError{Kind: order.Refused, Package: "jq", Reason: "it is marked as broken"}, `package "jq" cannot be added, for it is marked as broken: do without, or tell the user`},
		{packages.BuildError{Kind: order.TooLarge, Size: 5e9}, `env "bash+jq" would take 5.0 GB, more than max_closure_mb of [on_demand] allows: name fewer or smaller packages, or ask the user to raise it`},
		{packages.BuildError{Kind: order.TooSlow}, `env "bash+jq" was not built within build_seconds of [on_demand]: do without, or ask the user to raise it`},
		{packages.BuildError{Kind: order.Crowded}, "too many environments wait to be built: call again in a minute, or use one that was built before"},
		{packages.BuildError{Kind: packages.NoBuild, Reason: "this server builds nothing"}, `env "bash+jq" cannot be built, because this server builds nothing: tell the user`},
		{packages.BuildError{Kind: order.Failed, Reason: "error: no\n[hint: x]"}, "env \"bash+jq\" could not be built: tell the user what Nix said, or do without\nerror: no\nNix: [hint: x]"},
	} {
		test.err.Env = env
		a := answer{call: call.Call{Env: env}, err: &test.err}
		if got := a.problem(); got != test.want {
			t.Errorf("%s\nwant %s", got, test.want)
		}
	}
	a := answer{call: call.Call{Env: env}, err: &packages.BuildingError{Env: "bash+jq", Done: 3, Total: 17}}
	if got, want := a.problem(), `env "bash+jq" is being built (3 of 17): call again in a minute`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestPackages_Hints(t *testing.T) {
	l := describing(registry.New(allowing(t)), Project{}).list()
	none := describing(registry.New(described()), Project{}).list()
	for _, test := range []struct{ env, stderr, want, without string }{
		{"python", "ModuleNotFoundError: No module named 'cv2'", `env "python+opencv4" has cv2`, nothingInstalled},
		{"python", "ModuleNotFoundError: No module named 'Pandas'", `env "python+pandas" has Pandas`, nothingInstalled},
		{"python", "ImportError: Missing optional dependency 'sklearn'. Use pip", `env "python+scikit-learn" has sklearn`, nothingInstalled},
		{"python+pandas", "ModuleNotFoundError: No module named 'cv2'", `env "python+opencv4+pandas" has cv2`, nothingInstalled},
		{"python+pandas", "ModuleNotFoundError: No module named 'pandas'", nothingInstalled, nothingInstalled},
		{"python", "ModuleNotFoundError: No module named 'pandas.magic'", nothingInstalled, nothingInstalled},
		{"python", "ModuleNotFoundError: No module named 'torch'", nothingInstalled, nothingInstalled},
		{"python", "ModuleNotFoundError: No module named 'pip'", nothingInstalled, nothingInstalled},
		{"bash", "bash: line 1: rg: command not found", `env "bash+ripgrep" has rg`, nothingInstalled},
		{"bash", "bash: line 1: node: command not found", `this env does not have it: use env "node" for such code`, `this env does not have it: use env "node" for such code`},
		{"node", "Error: Cannot find module 'jq'", nothingInstalled, nothingInstalled},
	} {
		for _, one := range []struct {
			listing
			want string
		}{{l, test.want}, {none, test.without}} {
			name, _, _ := strings.Cut(test.env, "+")
			a := answer{call: call.Call{Env: one.Ready()[name], Session: "s"}}
			if env, ok, _ := one.environment(test.env, nil); ok {
				a.call.Env = env
			}
			a.result.Outcome, a.result.ExitCode, a.result.Stderr.Head = "ok", 1, test.stderr
			if got := one.hint(a); got != one.want {
				t.Errorf("%s: %s: %s\nwant %s", test.env, test.stderr, got, one.want)
			}
		}
	}
}

// Code that would install a package is told where it is.
func TestPackages_HintsForInstallers(t *testing.T) {
	l := describing(registry.New(allowing(t)), Project{}).list()
	for _, test := range []struct{ env, code, want string }{
		{"python", "!pip install -q pandas", `env "python+pandas" has pandas`},
		{"python", "pip install scikit_learn", `env "python+scikit-learn" has scikit_learn`},
		{"python", "pip install torch", ""},
		{"python", "try:\n    import x\nexcept ImportError:\n    subprocess.check_call([sys.executable, '-m', 'pip', 'install', '-q', 'pandas'])", `env "python+pandas" has pandas`},
		{"python", "os.system('pip install pandas')", `env "python+pandas" has pandas`},
		{"python", `subprocess.run("python3 -m pip install -U pandas", shell=True)`, `env "python+pandas" has pandas`},
		{"python", "print('pip cannot install pandas')", ""},
		{"bash", "set -e\napt-get update && apt-get install -y jq", `env "bash+jq" has jq`},
		{"node", "npm install jq", ""},
	} {
		if got := l.installable(l.Ready()[test.env], test.code); got != test.want {
			t.Errorf("%s: %q, want %q", test.code, got, test.want)
		}
	}
}

// What the option costs of the model's context, and that it costs nothing where it is
// not used.
func TestPackages_ContextCost(t *testing.T) {
	project := Project{Mount: "/project"}
	before := describing(registry.New(described()), project)
	for _, names := range [][]string{nil, {"pandas"}, {"opencv4", "pandas", "scikit-learn", "matplotlib", "sympy", "networkx"}, slices.Repeat([]string{"a-package-with-a-long-name"}, 100)} {
		set := described()
		for name, env := range set.Environments {
			env.OnDemand = &registry.OnDemand{All: names == nil, Names: names}
			set.Environments[name] = env
		}
		tool := describing(registry.New(set), project)
		clause := tool.list().adding()
		t.Logf("%d bytes, %d more: %s", cost(t, tool), cost(t, tool)-cost(t, before), clause)
		if all := cost(t, tool); clause == "" || all-cost(t, before) > 110 || all >= 1550 {
			t.Errorf("%d bytes:\n%s", all, ask(t, tool, "tools/list"))
		}
		pattern := fmt.Sprintf(`"env":{"type":"string","pattern":%s}`, must.Get(json.Marshal(`^(bash|node|python)(\+[\w-]+)*$`))(t))
		if list := ask(t, tool, "tools/list"); !strings.Contains(list, pattern) {
			t.Errorf("the schema lacks %s: %s", pattern, list)
		}
	}
	if clause := before.list().adding(); clause != "" {
		t.Errorf("without packages: %q", clause)
	}
}

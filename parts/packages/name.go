package packages

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/near"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// Bounds of the name of an environment with packages.
const (
	// MaxPackages is how many packages a name may add.
	MaxPackages = 16
	// maxName bounds such a name in its canonical form, in bytes: with an
	// ending, it is the name of a file.
	maxName = 200
)

// plus stands between the parts of the name of an environment with packages.
const plus = "+"

// Name names an environment with packages that a call adds to it.
type Name struct {
	// Base is the name of the environment.
	Base string
	// Packages are the packages' names, in order and each once; at least one.
	Packages []string
}

// nameOf returns the name of an environment. It has packages only if calls added them.
func nameOf(env registry.Environment) Name { return Name{env.BaseName(), env.Added} }

// String returns the canonical form, NAME+PACKAGE+PACKAGE: two names of the same
// packages in the same environment have one.
func (d Name) String() string { return d.Base + plus + strings.Join(d.Packages, plus) }

// Includes reports whether d has all the packages of another name of the same
// environment.
func (d Name) Includes(other Name) bool {
	return d.Base == other.Base && !slices.ContainsFunc(other.Packages, func(name string) bool { return !slices.Contains(d.Packages, name) })
}

// With returns d with the packages of another name of the same environment.
func (d Name) With(other Name) Name {
	all := slices.Concat(d.Packages, other.Packages)
	slices.Sort(all)
	return Name{d.Base, slices.Compact(all)}
}

// Parse reads a name of the form NAME+PACKAGE+PACKAGE, in any order and with
// repetitions. The error is a sentence for the model. It does not say whether there is
// such an environment, or such a package.
func Parse(text string) (Name, error) {
	base, rest, _ := strings.Cut(text, plus)
	many := fmt.Errorf("these are too many packages: name at most %d, in at most %d bytes", MaxPackages, maxName)
	// Each package has at least one byte and a plus.
	if len(text) > 2*maxName*MaxPackages {
		return Name{}, many
	}
	parts := strings.Split(rest, plus)
	for _, part := range append([]string{base}, parts...) {
		if part == "" {
			return Name{}, fmt.Errorf("a name is missing beside a +: use env \"%s+NAME\", or \"%s\" alone", base, base)
		}
	}
	if !registry.ValidName.MatchString(base) {
		return Name{}, fmt.Errorf("%.80q is no name of an environment", base)
	}
	for _, part := range parts {
		if !registry.ValidPackage.MatchString(part) {
			return Name{}, fmt.Errorf("%.80q is no name of a package: use env \"%s+NAME\", with letters, digits, - and _ alone in each name", part, base)
		}
	}
	slices.Sort(parts)
	name := Name{base, slices.Compact(parts)}
	if len(name.Packages) > MaxPackages || len(name.String()) > maxName {
		return Name{}, many
	}
	return name, nil
}

// allowed are the packages that calls may add to an environment.
type allowed struct{ *registry.OnDemand }

// recipe returns the path of the file that the builder makes an environment with further packages
// from.
func recipe(env registry.Environment) string {
	return filepath.Join(env.OnDemand.Folder, "recipe.json")
}

// Key returns 64 letters and digits that identify the environment that a name stands for. They
// change with the artifact of its base.
func Key(base registry.Environment, name Name) string {
	sum := sha256.Sum256([]byte(recipe(base) + "\x00" + name.String()))
	return hex.EncodeToString(sum[:])
}

// check returns an error if a package may not be added or, as far as is known without Nix, does not
// exist.
func check(base registry.Environment, d Name) error {
	o := allowed{base.OnDemand}
	known := tableOf(o.Folder)
	for _, name := range d.Packages {
		if !known.allows(o, name) {
			return o.refusal(d, name, !o.All)
		}
	}
	return nil
}

// refusal says why a package of a name cannot be added, and what to write instead. Listed says that
// the environment has a list without the package; otherwise there is no such package.
func (o allowed) refusal(wanted Name, name string, listed bool) error {
	known, near := tableOf(o.Folder), o.Near(name)
	text := fmt.Sprintf("there is no package %q", name)
	if listed {
		text = fmt.Sprintf("env %q may not have package %q, which is not in packages_on_demand of [environments.%s]", wanted.Base, name, wanted.Base)
	}
	instead := func(with string) Name {
		others := slices.DeleteFunc(slices.Clone(wanted.Packages), func(other string) bool { return other == name })
		return Name{wanted.Base, others}.With(Name{wanted.Base, []string{with}})
	}
	switch has := cmp.Or(known.Modules[name], known.Programs[name]); {
	case has != "":
		return fmt.Errorf("%s: call again with env \"%s\", which has it", text, instead(has))
	case len(near) == 1:
		return fmt.Errorf("%s: did you mean env \"%s\"?", text, instead(near[0]))
	case len(near) > 0:
		return fmt.Errorf("%s: did you mean %s?", text, strings.Join(near, ", "))
	case listed:
		return fmt.Errorf("%s: do without, or ask the user to allow it there", text)
	}
	return fmt.Errorf("%s: use the name that the package has in nixpkgs, or do without", text)
}

// Near returns at most three names of packages that may be added and that differ
// little from another name.
func (o allowed) Near(name string) []string {
	if !o.All {
		return nearest(name, o.Names)
	}
	return nearest(name, tableOf(o.Folder).Names)
}

// Module returns the package with a module, by the name that code imports. It returns false if no
// allowed package is known to contain it.
func (o allowed) Module(name string) (string, bool) {
	known := tableOf(o.Folder)
	if of, ok := known.Modules[name]; ok {
		return of, true
	}
	if !known.ModulesByName {
		return "", false
	}
	return known.named(name)
}

// Program returns the package with a program. It returns false if no allowed package is known to
// contain it.
func (o allowed) Program(name string) (string, bool) {
	known := tableOf(o.Folder)
	if of, ok := known.Programs[name]; ok {
		return of, true
	}
	return known.named(name)
}

// table is the builder's table of packages (packages.json).
type table struct {
	Names []string
	// Modules and Programs are packages by names other than their own.
	Modules, Programs map[string]string
	// ModulesByName says that most modules are imported by their packages' names.
	ModulesByName bool `json:"modules_by_name"`

	names map[string]bool
	// has are the modules that the environment has itself.
	has map[string]bool
}

// allows reports whether a package may be added. If the table could not be read, only the
// environment's list counts; if that allows all packages, the builder finds out.
func (t *table) allows(o allowed, name string) bool {
	if !o.All {
		return slices.Contains(o.Names, name)
	}
	return t.names[name] || len(t.names) == 0
}

func (t *table) named(name string) (string, bool) {
	for _, written := range []string{name, strings.ToLower(name), plainName(name)} {
		if !registry.ValidPackage.MatchString(written) {
			continue
		}
		if t.names[written] {
			return written, true
		}
	}
	return "", false
}

// tables caches tables by the folders of their artifacts, which never change. It holds at most
// maxTables.
var tables = struct {
	sync.Mutex
	of map[string]*table
}{of: map[string]*table{}}

const (
	maxTables = 64
	maxTable  = 4 << 20 // bytes of its file
)

// tableOf returns the table of an artifact. An unreadable table is empty.
func tableOf(folder string) *table {
	tables.Lock()
	defer tables.Unlock()
	if known := tables.of[folder]; known != nil {
		return known
	}
	known := &table{}
	if data, err := bounded.ReadFile(filepath.Join(folder, "packages.json"), maxTable); err == nil {
		if json.Unmarshal(data, known) != nil {
			*known = table{}
		}
	}
	known.Names = slices.DeleteFunc(known.Names, func(name string) bool { return !registry.ValidPackage.MatchString(name) })
	known.names = make(map[string]bool, len(known.Names))
	for _, name := range known.Names {
		known.names[name] = true
	}
	for _, other := range []map[string]string{known.Modules, known.Programs} {
		maps.DeleteFunc(other, func(_, name string) bool { return !registry.ValidPackage.MatchString(name) })
	}
	known.has = map[string]bool{}
	var own struct {
		Packages []struct {
			Module string `json:"module"`
		} `json:"packages"`
	}
	if data, err := bounded.ReadFile(filepath.Join(folder, "recipe.json"), maxTable); err == nil && json.Unmarshal(data, &own) == nil {
		for _, one := range own.Packages {
			known.has[one.Module] = true
		}
	}
	if len(tables.of) >= maxTables {
		clear(tables.of)
	}
	tables.of[folder] = known
	return known
}

// nearest returns at most three of the names: the most similar ones, which differ from the word in
// at most a third of its letters. It takes time proportional to the number of names, and the length
// of a package's name is bounded.
func nearest(word string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	word = plainName(word)
	most := max(1, len(word)/3)
	var all []candidate
	for _, name := range names {
		other := plainName(name)
		if len(other) > len(word)+most || len(other) < len(word)-most {
			continue
		}
		if d := near.Distance(word, other); d <= most {
			all = append(all, candidate{name, d})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(a.distance-b.distance, strings.Compare(a.name, b.name))
	})
	var found []string
	for _, c := range all[:min(len(all), 3)] {
		found = append(found, c.name)
	}
	return found
}

// plainName returns a name without the differences in spelling that people are likely to make.
func plainName(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

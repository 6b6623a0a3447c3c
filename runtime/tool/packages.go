package tool

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// derivedName returns the environment and packages that a text names; ok is false
// where it names neither, or an environment that there is not.
func (l listing) derivedName(text string) (derived registry.Derived, ok bool, refusal error) {
	if !registry.IsDerived(text) {
		return derived, false, nil
	}
	name, _, _ := strings.Cut(text, "+")
	if _, pending := l.Pending(name); pending {
		return derived, false, l.noEnvironment(name)
	}
	base, known := l.Environment(name)
	if !known {
		return derived, false, nil
	}
	if base.OnDemand == nil && len(l.withOnDemand()) == 0 {
		return derived, false, nil
	}
	if base.OnDemand == nil {
		return derived, false, fmt.Errorf("env %q takes no further packages: leave %s out, or ask the user to allow it in packages_on_demand of [environments.%s]", name, quoteStart(strings.TrimPrefix(text, name)), name)
	}
	derived, err := registry.ParseDerived(text)
	if err == nil {
		err = base.OnDemand.Check(derived)
	}
	if err != nil {
		return derived, false, noPackage(name, derived, err)
	}
	return derived, true, nil
}

// derived returns the environment of a name that an environment allows, and false where
// that is not there any more. One that is yet to be built has no programs.
func (l listing) derived(d registry.Derived) (env registry.Environment, ok bool) {
	if env, ok = l.Derived(d.String()); ok {
		return env, true
	}
	env, ok = l.Environment(d.Base)
	env.Name, env.Derived, env.Exec, env.SessionExec, env.Closure = d.String(), &d, "", "", ""
	return env, ok && env.OnDemand != nil
}

// quoteStart quotes at most 80 bytes of a text.
func quoteStart(text string) string { return fmt.Sprintf("%.80q", text) }

// noPackage words why packages cannot be added to an environment.
func noPackage(base string, wanted registry.Derived, err error) error {
	var name *registry.DerivedNameError
	var unknown *registry.PackageError
	switch {
	case errors.As(err, &name) && name.Blank:
		return fmt.Errorf("a name is missing beside a +: write env \"%s+NAME\", or \"%s\" alone", base, base)
	case errors.As(err, &name) && name.Part != "":
		return fmt.Errorf("%s is no name of a package: write env \"%s+NAME\", with letters, digits, - and _ alone in each name", quoteStart(name.Part), base)
	case errors.As(err, &name):
		return fmt.Errorf("these are too many packages: name at most %d, in at most 200 bytes", registry.MaxPackages)
	case !errors.As(err, &unknown):
		return err
	}
	text := fmt.Sprintf("there is no package %q", unknown.Package)
	if unknown.Listed {
		text = fmt.Sprintf("env %q may not have package %q, which is not in packages_on_demand of [environments.%s]", base, unknown.Package, base)
	}
	switch {
	case unknown.Has != "":
		return fmt.Errorf("%s: call again with env \"%s\", which has it", text, instead(wanted, unknown.Package, unknown.Has))
	case len(unknown.Near) == 1:
		return fmt.Errorf("%s: did you mean env \"%s\"?", text, instead(wanted, unknown.Package, unknown.Near[0]))
	case len(unknown.Near) > 0:
		return fmt.Errorf("%s: did you mean %s?", text, strings.Join(unknown.Near, ", "))
	case unknown.Listed:
		return fmt.Errorf("%s: do without, or ask the user to allow it there", text)
	default:
		return fmt.Errorf("%s: write the name that the package has in nixpkgs, or do without", text)
	}
}

// instead is a name with another package in place of one of its own.
func instead(d registry.Derived, of, with string) string {
	others := slices.DeleteFunc(slices.Clone(d.Packages), func(name string) bool { return name == of })
	return registry.Derived{Base: d.Base, Packages: others}.With(registry.Derived{Base: d.Base, Packages: []string{with}}).String()
}

// stillBuilding words that an environment with packages is not there yet.
func stillBuilding(b *call.BuildingError) string {
	progress := ""
	if b.Total > 0 {
		progress = fmt.Sprintf(" (%d of %d)", b.Done, b.Total)
	}
	return fmt.Sprintf("env %q is being built%s: call again in a minute", b.Env, progress)
}

// buildProblem words why an environment with packages was not built.
func buildProblem(b *call.BuildError) string {
	const bounds = "[on_demand]"
	switch b.Kind {
	case call.Absent:
		return noPackage(b.Env.Derived.Base, *b.Env.Derived, &registry.PackageError{Env: b.Env.Derived.Base, Package: b.Package, Near: b.Env.OnDemand.Near(b.Package)}).Error()
	case call.Refused:
		return fmt.Sprintf("package %q cannot be added, for %s: do without, or tell the user", b.Package, b.Reason)
	case call.TooLarge:
		return fmt.Sprintf("env %q would take %s, more than max_closure_mb of %s allows: name fewer or smaller packages, or ask the user to raise it", b.Env.Name, size(b.Size), bounds)
	case call.TooSlow:
		return fmt.Sprintf("env %q was not built within build_seconds of %s: do without, or ask the user to raise it", b.Env.Name, bounds)
	case call.Crowded:
		return "too many environments wait to be built: call again in a minute, or use one that was built before"
	case call.NoBuild:
		return fmt.Sprintf("env %q cannot be built, because %s: tell the user", b.Env.Name, b.Reason)
	}
	return fmt.Sprintf("env %q could not be built: tell the user what Nix said, or do without\n%s", b.Env.Name, markImitations("Nix", b.Reason))
}

// addable is the hint for a module or program that an environment would have with a
// package that a call may add; empty where there is none. What is found by the name is
// a name of the table, so that no text of a sandbox is repeated.
func addable(env registry.Environment, name string, find func(*registry.OnDemand, string) (string, bool)) string {
	// Of a dotted name of a module, the first part is there. What would install other
	// modules has nothing to install them from.
	if env.OnDemand == nil || strings.Contains(name, ".") || env.Language != nil && slices.Contains(env.Language.Installers, name) {
		return ""
	}
	found, ok := find(env.OnDemand, name)
	if !ok {
		return ""
	}
	has := env.Added()
	with := has.With(registry.Derived{Base: has.Base, Packages: []string{found}})
	if has.Includes(with) {
		return ""
	}
	if _, err := registry.ParseDerived(with.String()); err != nil {
		return "" // they are too many
	}
	return fmt.Sprintf("env \"%s\" has %s", with, name)
}

// installable is the hint for code that would install a package, where a call may add
// it; empty otherwise.
func installable(env registry.Environment, code string) string {
	if env.OnDemand == nil || env.Language == nil || env.Language.Errors.Install == nil {
		return ""
	}
	name := first(env.Language.Errors.Install.FindStringSubmatch(code))
	if text := addable(env, name, (*registry.OnDemand).Module); text != "" {
		return text
	}
	return addable(env, name, (*registry.OnDemand).Program)
}

// Bounds of what the description says of packages, in bytes: of all of it, which with
// the pattern of env is 110, and of the names in it.
const (
	addingBytes      = 88
	addingNamesBytes = 60
)

// adding says in the description that calls may add packages; empty where none may.
func (l listing) adding() string {
	all := l.withOnDemand()
	if len(all) == 0 {
		return ""
	}
	first := all[0]
	text := fmt.Sprintf("\n%s+NAME+NAME adds packages", first.Name)
	what := " of nixpkgs"
	if !first.OnDemand.All {
		what = ""
		if names := strings.Join(first.OnDemand.Names, ", "); len(names) <= addingNamesBytes {
			what = ": " + names
		}
	}
	also := ""
	if others := namesOf(all[1:]); len(others) > 0 {
		also = "; also in " + strings.Join(others, ", ")
	}
	// A line feed is two bytes in JSON.
	for _, full := range []string{text + what + also, text + also, text + what, text} {
		if len(full)+1 <= addingBytes {
			return full
		}
	}
	return ""
}

// withOnDemand returns the environments to which calls may add packages.
func (l listing) withOnDemand() []registry.Environment {
	return l.those(func(env registry.Environment) bool { return env.OnDemand != nil })
}

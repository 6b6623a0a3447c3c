// Package packages lets calls add packages to environments: a call of ENV+PACKAGE runs in an
// environment that the builder makes of ENV and the package.
//
// [Catalog] tells the model and its calls which packages there are, [Executor] delays a call until
// its environment is built, and [Grow] moves a session to it. A name that reaches the builder is
// one that the environment allows. This package starts no process and does not know Nix: it orders of the
// builder (package order).
package packages

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// Catalog finds environments with packages in a folder. It implements the interface of package
// tool: its errors and hints are sentences for the model.
type Catalog struct{ Folder string }

// Environment returns the environment with packages that a call names, in a session that has
// sandboxes of the live environments: such a session has the packages that its earlier calls
// added. If the environment has yet to be built, it has no programs. ok is false if the call names
// an environment without packages.
func (c Catalog) Environment(now *registry.Snapshot, text string, live []registry.Environment) (env registry.Environment, ok bool, err error) {
	wanted, err := parse(now, text)
	if err != nil {
		return env, false, err
	}
	for _, env := range live {
		if has := nameOf(env); has.Base == wanted.Base && len(has.Packages) > 0 {
			wanted = has.With(wanted)
			if _, err := Parse(wanted.String()); err != nil {
				return env, false, err
			}
		}
	}
	if len(wanted.Packages) == 0 {
		return env, false, nil
	}
	// A session stays with the artifact that it has.
	for _, env := range live {
		if env.Name == wanted.String() {
			return env, true, nil
		}
	}
	base, known := now.Environment(wanted.Base)
	if !known || base.OnDemand == nil {
		return env, false, nil
	}
	if env, err := Read(c.Folder, base, wanted); err == nil {
		return env, true, nil
	}
	env = base
	env.Name, env.Base, env.Added, env.BaseExec = wanted.String(), wanted.Base, wanted.Packages, base.SessionExec
	env.Exec, env.SessionExec, env.Closure = "", "", ""
	return env, true, nil
}

// parse returns the name that a text means. It has no packages if the text names an environment
// alone, or one that takes none and that there is not. The error is a sentence for the model.
func parse(now *registry.Snapshot, text string) (Name, error) {
	base, _, _ := strings.Cut(text, plus)
	env, known := now.Environment(base)
	if !strings.Contains(text, plus) || !known || env.OnDemand == nil && len(addable(now)) == 0 {
		return Name{Base: text}, nil
	}
	if env.OnDemand == nil {
		return Name{}, fmt.Errorf("env %q takes no further packages: leave %.80q out, or ask the user to allow it in packages_on_demand of [environments.%s]", base, strings.TrimPrefix(text, base), base)
	}
	name, err := Parse(text)
	if err == nil {
		err = check(env, name)
	}
	return name, err
}

// addable returns the environments that calls may add packages to, sorted by name.
func addable(now *registry.Snapshot) (environments []registry.Environment) {
	for _, name := range now.Names() {
		if env := now.Ready()[name]; env.OnDemand != nil {
			environments = append(environments, env)
		}
	}
	return environments
}

// Offer returns a hint that an environment would have a missing module or program with a package,
// or "" if calls may add no such package. The hint contains no text of a sandbox but a name that
// the environment's own table has.
func (Catalog) Offer(env registry.Environment, missing string, isModule bool) string {
	// A dotted module is part of an installed one. An installer has nowhere to install from.
	if env.OnDemand == nil || strings.Contains(missing, ".") || env.Language != nil && slices.Contains(env.Language.Installers, missing) {
		return ""
	}
	find := allowed{env.OnDemand}.Program
	if isModule {
		find = allowed{env.OnDemand}.Module
	}
	found, ok := find(missing)
	if !ok {
		return ""
	}
	has := nameOf(env)
	with := has.With(Name{has.Base, []string{found}})
	if has.Includes(with) || tableOf(env.OnDemand.Folder).has[found] {
		return ""
	}
	if _, err := Parse(with.String()); err != nil {
		return "" // they are too many
	}
	return fmt.Sprintf("env \"%s\" has %s", with, missing)
}

// Bounds of what the tool's description says of packages, in bytes: of all of it, which with the
// pattern of env is 110, and of the names in it.
const (
	describeBytes      = 88
	describeNamesBytes = 60
)

// Describe returns a line for the tool's description that says where calls may add packages, or ""
// if they may not.
func (Catalog) Describe(now *registry.Snapshot) string {
	all := addable(now)
	if len(all) == 0 {
		return ""
	}
	isLimited := func(env registry.Environment) bool { return !env.OnDemand.All }
	if len(all) == len(now.Ready()) && len(all) > 1 && !slices.ContainsFunc(all, isLimited) {
		return "env+PACKAGE adds it from nixpkgs"
	}
	first, also := all[0], ""
	text := first.Name + "+NAME+NAME adds packages"
	what := " of nixpkgs"
	if !first.OnDemand.All {
		what = ""
		if names := strings.Join(first.OnDemand.Names, ", "); len(names) <= describeNamesBytes {
			what = ": " + names
		}
	}
	for i, env := range all[1:] {
		also += map[bool]string{true: "; also in ", false: ", "}[i == 0] + env.Name
	}
	for _, full := range []string{text + what + also, text + also, text + what, text} {
		// A line feed before it is two bytes in JSON.
		if len(full)+2 <= describeBytes {
			return full
		}
	}
	return ""
}

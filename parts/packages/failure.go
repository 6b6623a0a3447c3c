package packages

import (
	"fmt"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// BuildingError reports an environment that is still being built, and goes on being built.
type BuildingError struct {
	Env string
	// Done and Total count its store paths. Total is 0 if it is not known.
	Done, Total int
}

func (e *BuildingError) Error() string {
	progress := ""
	if e.Total > 0 {
		progress = fmt.Sprintf(" (%d of %d)", e.Done, e.Total)
	}
	return fmt.Sprintf("env %q is being built%s: call again in a minute", e.Env, progress)
}

// BuildError reports an environment that was not built. Its text is for the model.
type BuildError struct {
	Env  registry.Environment
	Kind order.Reason
	// Package is the package at fault, for Absent and Refused.
	Package string
	// Reason is Nix's: a phrase for Refused, the last lines that Nix wrote for Failed.
	Reason string
	// Size is the size of the environment, in bytes, for TooLarge.
	Size int64
}

// The reasons beside those of the builder.
const (
	NoBuild order.Reason = "no-build" // the builder cannot be asked
	Denied  order.Reason = "denied"   // the user said no
	Unasked order.Reason = "unasked"  // the user could not be asked, or did not answer
)

// buildError returns the error of the builder's failure.
func buildError(env registry.Environment, f order.Failure) *BuildError {
	return &BuildError{Env: env, Kind: f.Kind, Package: f.Package, Reason: f.Text, Size: f.Size}
}

func (e *BuildError) Error() string {
	const bounds = "[on_demand]"
	name := e.Env.Name
	switch e.Kind {
	case order.Absent:
		return allowed{e.Env.OnDemand}.refusal(nameOf(e.Env), e.Package, false).Error()
	case order.Refused:
		return fmt.Sprintf("package %q cannot be added, for %s: do without, or tell the user", e.Package, e.Reason)
	case order.TooLarge:
		return fmt.Sprintf("env %q would take %s, more than max_closure_mb of %s allows: name fewer or smaller packages, or ask the user to raise it", name, size(e.Size), bounds)
	case order.TooSlow:
		return fmt.Sprintf("env %q was not built within build_seconds of %s: do without, or ask the user to raise it", name, bounds)
	case order.Crowded:
		return "too many environments wait to be built: call again in a minute, or use one that was built before"
	case Denied:
		return fmt.Sprintf("the user said no to building env %q: do without, or use one that was built before", name)
	case Unasked:
		return fmt.Sprintf("the user has to allow building env %q, and could not be asked or did not answer: do without, or ask the user to run nix-sandbox-mcp approve, or to set packages_ask = false in [environments.%s]", name, e.Env.Base)
	case NoBuild:
		return fmt.Sprintf("env %q cannot be built, because %s: tell the user", name, e.Reason)
	}
	return fmt.Sprintf("env %q could not be built: tell the user what Nix said, or do without", name)
}

// Quoted returns the text of another program that the answer shows below the error, and the
// program's name.
func (e *BuildError) Quoted() (program, text string) {
	if e.Kind == order.Failed {
		return "Nix", e.Reason
	}
	return "", ""
}

// size words a number of bytes, which is that of a closure.
func size(bytes int64) string {
	if bytes < 1e9 {
		return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(bytes)/1e9)
}

package packages

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
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
	Kind Failure
	// Package is the package at fault, for Absent and Refused.
	Package string
	// Reason is Nix's: a phrase for Refused, the last lines that Nix wrote for Failed.
	Reason string
	// Size is the size of the environment, in bytes, for TooLarge.
	Size int64
}

// Failure is why an environment was not built.
type Failure string

const (
	Absent   Failure = "absent"   // there is no such package
	Refused  Failure = "refused"  // Nix refuses to build it: broken, unfree, insecure
	TooLarge Failure = "large"    // it would take more than its bound
	TooSlow  Failure = "slow"     // it took longer than its bound
	Failed   Failure = "failed"   // Nix failed
	Crowded  Failure = "crowded"  // too many builds wait
	NoBuild  Failure = "no-build" // the builder cannot be asked
	Denied   Failure = "denied"   // the user said no
	Unasked  Failure = "unasked"  // the user could not be asked, or did not answer
)

func (e *BuildError) Error() string {
	const bounds = "[on_demand]"
	name := e.Env.Name
	switch e.Kind {
	case Absent:
		return allowed{e.Env.OnDemand}.refusal(nameOf(e.Env), e.Package, false).Error()
	case Refused:
		return fmt.Sprintf("package %q cannot be added, for %s: do without, or tell the user", e.Package, e.Reason)
	case TooLarge:
		return fmt.Sprintf("env %q would take %s, more than max_closure_mb of %s allows: name fewer or smaller packages, or ask the user to raise it", name, size(e.Size), bounds)
	case TooSlow:
		return fmt.Sprintf("env %q was not built within build_seconds of %s: do without, or ask the user to raise it", name, bounds)
	case Crowded:
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
	if e.Kind == Failed {
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

// parseFailure reads the builder's report: a line with the kind of failure and its arguments,
// which are a package and a reason, or a size; and then Nix's own lines.
func parseFailure(env registry.Environment, text string) *BuildError {
	first, rest, _ := strings.Cut(text, "\n")
	kind, more, _ := strings.Cut(first, " ")
	failure := &BuildError{Env: env, Kind: Failure(kind), Reason: strings.TrimSpace(rest)}
	switch failure.Kind {
	case Absent, Refused:
		failure.Package, failure.Reason, _ = strings.Cut(more, " ")
	case TooLarge:
		failure.Size, _ = strconv.ParseInt(more, 10, 64)
	case TooSlow, Crowded:
	default:
		failure.Kind = Failed
	}
	return failure
}

// Package command contains the code that the programs of the server share: how they report errors,
// and how one of them hands over to another.
package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// Program is the name that users type, whichever program answers.
const Program = "nix-sandbox-mcp"

// Exit statuses. Otherwise the exit status is that of the code that ran.
const (
	Failed  = 1
	Misused = 2   // the command line is wrong
	TooLong = 124 // the code exceeded its time limit, as timeout(1) reports it
	// NoSandbox says that there is no sandbox for the code, as of containers.
	NoSandbox = 125
)

// ending is an error with an exit status of its own.
type ending struct {
	status        int
	problem, hint string
}

func (e *ending) Error() string { return e.problem }

// Misuse returns the error of a mistake in the command line.
func Misuse(problem, hint string) error { return End(Misused, problem, hint) }

// End returns an error with an exit status of its own.
func End(status int, problem, hint string) error { return &ending{status, problem, hint} }

// Exit returns an error that ends a program with a status and prints nothing; nil for 0.
func Exit(status int) error {
	if status == 0 {
		return nil
	}
	return &ending{status: status}
}

// Report writes an error to the log of the user, and returns the exit status.
func Report(log io.Writer, err error) int {
	if err == nil {
		return 0
	}
	status, hint := Failed, ""
	var wrong *config.Error
	var end *ending
	switch {
	case errors.As(err, &end):
		status, hint = end.status, end.hint
	case errors.As(err, &wrong):
		hint = wrong.Hint
	}
	if err.Error() == "" {
		return status
	}
	fmt.Fprintf(log, "%s: error: %v\n", Program, err)
	if hint != "" {
		fmt.Fprintf(log, "%s: hint: %s\n", Program, hint)
	}
	return status
}

// version is set by the linker.
var version string

// Version returns the version of the programs, or that of the module if the linker set none.
func Version() string {
	module := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		module = info.Main.Version
	}
	return cmp.Or(version, module, "unknown")
}

// GatewayVariable names the program that serves HTTP, or is empty if the server was built
// without it. The wrapper sets it.
const GatewayVariable = "NIX_SANDBOX_GATEWAY"

// Gateway replaces this process by the gateway, and returns only if it cannot. The reason names the
// setting that needs the gateway; it begins the error of a server that was built without one.
func Gateway(reason string, args ...string) error {
	path := os.Getenv(GatewayVariable)
	if path == "" {
		return &config.Error{
			Problem: reason + ", and this server was built without [serve]",
			Hint:    "add the line [serve] to the configuration that the server is built from, and build it again",
		}
	}
	return fmt.Errorf("start %s: %w", path, unix.Exec(path, append([]string{os.Args[0]}, args...), os.Environ()))
}

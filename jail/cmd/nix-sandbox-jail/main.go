// The command nix-sandbox-jail is the interpreter of the programs of an
// artifact: the kernel starts it with the path of such a file, and it becomes
// the sandbox that the file describes. For a file that is called check it prints
// what the sandbox needs of this machine, and starts none; for one that is called
// workspace it becomes the holder of a workspace for several sandboxes.
//
// Its exit status is that of the sandbox, or 125 where none started.
package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
)

// version is set when the program is linked.
var version = "unknown"

// exitRefused tells "no sandbox started" from every status of the code in it.
const exitRefused = 125

// The signal that ends a process with its parent is the main thread's, which
// therefore is the one that becomes the sandbox.
func init() { runtime.LockOSThread() }

func main() {
	err := run(os.Args[1:])
	if err == nil {
		return
	}
	jail.WriteError(os.Stderr, err)
	os.Exit(exitRefused)
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == jail.Hold:
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case len(args) > 0 && args[0] == jail.NetworkStep:
		return jail.RunNetworkStep(args[1:])
	case len(args) > 0 && args[0] == jail.HandOut:
		return jail.RunHandOut(args[1:])
	case len(args) > 0 && args[0] == jail.Join:
		return jail.RunJoin(args[1:])
	case len(args) > 0 && args[0] == jail.UpperStep:
		return jail.RunUpperStep(args[1:])
	case len(args) == 1 && args[0] == "--version":
		_, err := os.Stdout.WriteString("nix-sandbox-jail " + version + "\n")
		return err
	case len(args) == 0:
		return &jail.Refusal{
			Problem: "no sandbox was named",
			Hint:    "run the sandbox's own bin/run",
		}
	case len(args) > 1:
		return &jail.Refusal{
			Problem: "a sandbox takes no arguments, and was given " + args[1],
			Hint:    "write the code to its standard input",
		}
	}
	spec, err := jail.ReadSpec(args[0])
	if err != nil {
		return err
	}
	switch filepath.Base(args[0]) {
	case jail.CheckName:
		return jail.WriteFindings(os.Stdout, spec.CheckMachine(context.Background()))
	case jail.WorkspaceName:
		return spec.StartWorkspace()
	}
	request, err := spec.ReadRequest(os.Getenv)
	if err != nil {
		return err
	}
	events := jail.NoEvents
	if spec.Network != nil {
		if events, err = jail.Events(os.Getenv(jail.EventsVariable)); err != nil {
			return err
		}
	}
	return spec.Start(request, events)
}

// The command nix-sandbox-seccomp writes the system call filter of an
// architecture to standard output, as bubblewrap's --seccomp reads it. It
// runs while a sandbox is built.
package main

import (
	"fmt"
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/seccomp"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nix-sandbox-seccomp: error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments were given, want an architecture: x86_64 or aarch64", len(args))
	}
	for _, arch := range seccomp.Archs {
		if arch.Name != args[0] {
			continue
		}
		filter, err := seccomp.Compile(arch)
		if err != nil {
			return err
		}
		encoded, err := seccomp.Encode(filter)
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(encoded)
		return err
	}
	return fmt.Errorf("no filter for the architecture %q, want x86_64 or aarch64", args[0])
}

// Command nix-sandbox-seccomp writes the system call filter of an architecture to
// standard output, as bubblewrap's --seccomp reads it. The filter is for sandboxes or, with
// a second argument "proxy", for the proxy of their networks. The command runs while a
// sandbox is built.
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
	compile := seccomp.Compile
	if len(args) == 2 && args[1] == "proxy" {
		compile, args = seccomp.CompileProxy, args[:1]
	}
	if len(args) != 1 {
		return fmt.Errorf("the arguments are %q, want an architecture, x86_64 or aarch64, and optionally the word proxy", args)
	}
	for _, arch := range seccomp.Archs {
		if arch.Name != args[0] {
			continue
		}
		filter, err := compile(arch)
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

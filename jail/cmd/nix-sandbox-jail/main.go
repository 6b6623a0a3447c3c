// The command nix-sandbox-jail is the interpreter of the programs of an
// artifact: the kernel starts it with the path of such a file, and it becomes
// the sandbox that the file describes. For a file that is called check it prints
// what the sandbox needs of this machine, and starts none; for one that is called
// workspace it becomes the holder of a workspace for several sandboxes.
//
// Its exit status is that of the sandbox, or 125 where none started.
package main

import (
	"runtime"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
)

// version is set when the program is linked.
var version = "unknown"

// The signal that ends a process with its parent is the main thread's, which
// therefore is the one that becomes the sandbox.
func init() { runtime.LockOSThread() }

func main() { jail.Main(version, nil) }

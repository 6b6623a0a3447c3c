// The command nix-sandbox-jail-devices is nix-sandbox-jail for sandboxes with devices of
// the host. It is a program of its own because it reads specifications in YAML, and the
// library for it would cost each start of the other one a tenth of a millisecond.
package main

import (
	"os"
	"runtime"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/devices/device"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
)

// version is set when the program is linked.
var version = "unknown"

// The signal that ends a process with its parent is the main thread's, which
// therefore is the one that becomes the sandbox.
func init() { runtime.LockOSThread() }

func main() { jail.Main(version, device.NewFinder(os.Getenv(device.FoldersVariable))) }

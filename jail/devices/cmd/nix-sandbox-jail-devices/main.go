// Command nix-sandbox-jail-devices is nix-sandbox-jail for sandboxes with devices of
// the host. It is a separate program because it reads specifications in YAML: the library
// for that would make every other start a tenth of a millisecond longer.
package main

import (
	"os"
	"runtime"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/devices/device"
)

// version is set when the program is linked.
var version = "unknown"

// The signal of a parent's end belongs to the main thread, so the main thread must become
// the sandbox.
func init() { runtime.LockOSThread() }

func main() { jail.Main(version, device.NewFinder(os.Getenv(device.FoldersVariable))) }

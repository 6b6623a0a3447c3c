// As in the agent, the Go runtime reads no files about the processors of its control group.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command nix-sandbox-jail is the interpreter of an artifact's programs: the kernel
// starts it with the path of such a file, and it becomes the sandbox that the file
// describes. For a file with the name check it only prints whether this machine can start
// the sandbox; for a file with the name workspace it becomes the holder of a workspace for
// several sandboxes.
//
// Its exit status is the sandbox's, or 125 if no sandbox started.
package main

import (
	"runtime"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
)

// version is set when the program is linked.
var version = "unknown"

// The signal of a parent's end belongs to the main thread, so the main thread must become
// the sandbox.
func init() { runtime.LockOSThread() }

func main() { jail.Main(version, nil) }

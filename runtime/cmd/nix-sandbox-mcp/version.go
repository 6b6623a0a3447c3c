package main

import "runtime/debug"

// version is set by the linker; without it the module's is used.
var version string

// release is the version that was built.
func release() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

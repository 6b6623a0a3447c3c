// Package mountpoint has the rules for the folder that a sandbox shows, and where. The launcher
// applies them to each sandbox, and the server to its settings, before any client waits
// for an answer. The build of a sandbox decides which paths are reserved.
package mountpoint

import (
	"path"
	"strings"
)

// Problem returns why a path cannot be a project's mount point, for use after "is PATH, ",
// or "" if it can. The reserved paths are absolute and clean.
func Problem(mount string, reserved []string) string {
	isControl := func(r rune) bool { return r < ' ' || r == 0x7f }
	if !path.IsAbs(mount) || path.Clean(mount) != mount || strings.ContainsFunc(mount, isControl) {
		return "which is not a plain absolute path"
	}
	for _, own := range reserved {
		if Inside(mount, own) || Inside(own, mount) {
			return "which overlaps the sandbox's own " + own
		}
	}
	return ""
}

// Inside reports whether a path is the folder or lies in it. Both are clean.
func Inside(path, folder string) bool {
	return folder == "/" || path == folder || strings.HasPrefix(path, folder+"/")
}

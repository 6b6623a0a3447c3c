// Package mountpoint has the rule for the path at which a project appears in
// a sandbox. The launcher refuses a sandbox by it, and the server checks its
// settings by it before a client waits for an answer. Which paths are a
// sandbox's own is decided where it is built.
package mountpoint

import (
	"path"
	"strings"
)

// Problem says why a path cannot be a project's mount point, for use after "is
// PATH, "; it is empty for one that can. The reserved paths are absolute and
// clean.
func Problem(mount string, reserved []string) string {
	isControl := func(r rune) bool { return r < ' ' || r == 0x7f }
	if !path.IsAbs(mount) || path.Clean(mount) != mount || strings.ContainsFunc(mount, isControl) {
		return "which is not a plain absolute path"
	}
	for _, own := range reserved {
		if inside(mount, own) || inside(own, mount) {
			return "which overlaps the sandbox's own " + own
		}
	}
	return ""
}

// inside reports whether a path is the folder or lies in it; both are clean.
func inside(path, folder string) bool {
	return folder == "/" || path == folder || strings.HasPrefix(path, folder+"/")
}

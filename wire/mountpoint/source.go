package mountpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Source returns the absolute path of a folder of the host that sandboxes are to show, or why it
// cannot be shown, for use after "is PATH, ".
func Source(dir string) (absolute, problem string) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", "which cannot be found: " + err.Error()
	}
	info, err := os.Stat(absolute)
	var unreadable *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return absolute, "which does not exist"
	case errors.As(err, &unreadable):
		return absolute, "which cannot be read: " + unreadable.Err.Error()
	case !info.IsDir():
		return absolute, "which is not a folder"
	}
	// The kernel's identities are compared, so that no link or bind mount hides the
	// root folder under another name.
	if root, err := os.Stat("/"); err != nil || os.SameFile(info, root) {
		return absolute, "which is the whole file system"
	}
	if resolved, err := filepath.EvalSymlinks(absolute); err == nil && ofMachine(resolved) {
		return absolute, "which shows the machine itself"
	}
	return absolute, ""
}

// ofMachine reports whether a path leads to files of the kernel or of the host's
// services: processes, devices or sockets. Memory disks, removable disks and users' own
// files at such paths may be projects.
func ofMachine(path string) bool {
	first, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "proc", "sys":
		return true
	case "dev":
		return !strings.HasPrefix(rest, "shm/")
	case "run":
		return !strings.HasPrefix(rest, "media/") && !(strings.HasPrefix(rest, "user/") && strings.Count(rest, "/") >= 2)
	}
	return false
}

package jail

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// overlayAllowed returns an error if user namespaces cannot make overlays here. It is
// more useful than bubblewrap's "Operation not permitted".
func overlayAllowed(bubblewrap string) error {
	known, err := os.ReadFile("/proc/filesystems")
	if err == nil && bytes.Contains(known, []byte("\toverlay\n")) && kernelAtLeast(5, 11) {
		return nil
	}
	// A module or a patch may provide it, which only a trial shows.
	try := exec.Command(bubblewrap, "--unshare-user", "--ro-bind", "/", "/",
		"--overlay-src", filepath.Dir(bubblewrap), "--tmp-overlay", "/tmp", "--", bubblewrap, "--version")
	try.Env = []string{}
	if try.Run() == nil {
		return nil
	}
	return &Refusal{
		Problem: "PROJECT_MODE is \"overlay\", and this kernel lets no user namespace make overlays: that takes Linux 5.11 with overlayfs",
		Hint:    "set PROJECT_MODE to readonly, or use a newer kernel",
	}
}

// kernelAtLeast reports whether the running kernel is of this version or later.
func kernelAtLeast(major, minor int) bool {
	var name unix.Utsname
	var a, b int
	if unix.Uname(&name) != nil {
		return false
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}

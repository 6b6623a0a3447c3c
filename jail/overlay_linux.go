package jail

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
)

// overlayAllowed returns an error if user namespaces cannot make overlays here. It is
// more useful than bubblewrap's "Operation not permitted".
func overlayAllowed(bubblewrap string) error {
	known, err := os.ReadFile("/proc/filesystems")
	if err == nil && bytes.Contains(known, []byte("\toverlay\n")) {
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
		Problem: "PROJECT_MODE is \"overlay\", and this kernel has no overlayfs",
		Hint:    "set PROJECT_MODE to readonly, or use a kernel with overlayfs",
	}
}

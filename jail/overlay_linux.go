package jail

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
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

// The server can ask for a descriptor of the upper layer of a project's overlay, to read
// what code wrote to the project. The layer is in the outer namespace, so the launcher
// sends the descriptor from there. No process of the sandbox gets it.

// UpperStep is the argument that has the launcher, in the outer namespace, send a
// descriptor of the upper layer over a socket and then go on with the start. The
// descriptor of the socket, the path of the layer and a command line follow it.
const UpperStep = "--upper"

// send returns the first words of a command line that sends the upper layer over a socket.
// From now on, processes inherit the socket.
func (o *Overlay) send(socket int) ([]string, error) {
	launcher, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return []string{launcher, UpperStep, strconv.Itoa(socket), o.Upper}, inherit(socket)
}

// RunUpperStep sends a descriptor of a folder over a socket, closes both, and becomes a
// program. Its arguments are FD PATH PROGRAM ARGUMENT...
func RunUpperStep(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("%s takes a descriptor, a path and a program, and was given %q", UpperStep, args)
	}
	socket, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("%s: %w", UpperStep, err)
	}
	upper, err := unix.Open(args[1], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the upper layer %s: %w", args[1], err)
	}
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(upper), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err != nil {
		return fmt.Errorf("send the upper layer: %w", err)
	}
	unix.Close(socket)
	return fmt.Errorf("start %s: %w", args[2], unix.Exec(args[2], args[2:], nil))
}

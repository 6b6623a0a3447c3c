package jail

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Whoever starts a sandbox whose project is an overlay can have a descriptor of the
// overlay's upper layer, and read by it what code wrote into the project. The layer is in
// the outer namespace, so this program sends the descriptor from there. Nothing in the
// sandbox has it.

// UpperStep is the argument with which the launcher, in the outer namespace, sends a
// descriptor of the upper layer over a socket and then goes on with the start. It is
// followed by the descriptor of the socket, the path of the layer, and a command line.
const UpperStep = "--upper"

// upperVariable has the number of the descriptor of the socket.
const upperVariable = "NIX_SANDBOX_UPPER"

// readUpper finds the socket in the value of its variable; 0 where that is empty, or where
// there is no overlay.
func readUpper(value string, project Project) (int, error) {
	if value == "" || !project.Overlay {
		return 0, nil
	}
	fd, err := strconv.Atoi(value)
	var stat unix.Stat_t
	if err != nil || fd < firstExtra || unix.Fstat(fd, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return 0, &Refusal{
			Problem: fmt.Sprintf("%s is %q, which is not the number of a descriptor of a socket", upperVariable, value),
			Hint:    "leave it unset: only the server sets it",
		}
	}
	return fd, nil
}

// send returns the command that sends the upper layer over a socket, without the program
// that follows it. Processes that are started from now on have the socket too.
func (o *Overlay) send(socket int) ([]string, error) {
	launcher, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(socket), unix.F_SETFD, 0); err != nil {
		return nil, fmt.Errorf("keep the socket for the upper layer open: %w", err)
	}
	return []string{launcher, UpperStep, strconv.Itoa(socket), o.Upper}, nil
}

// RunUpperStep sends a descriptor of the folder at a path over a socket, closes both, and
// becomes a program: FD PATH PROGRAM ARGUMENT...
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

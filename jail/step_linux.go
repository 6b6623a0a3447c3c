package jail

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// step is the launcher's part in the outer namespace. Its descriptors stay open across execve.
type step struct {
	// Mounts are detached mounts, and where to attach them.
	Mounts []place `json:"mounts,omitempty"`
	// Upper is a socket that gets a descriptor of the folder.
	Upper   *place       `json:"upper,omitempty"`
	Network *networkStep `json:"network,omitempty"`
}

// place is a descriptor and the path that belongs to it.
type place struct {
	FD   int    `json:"fd"`
	Path string `json:"path"`
}

// command returns the first words of a command line in the outer namespace, or nil if there is
// nothing to do. From now on, processes inherit the step's descriptors.
func (s step) command() ([]string, error) {
	if s.Mounts == nil && s.Upper == nil && s.Network == nil {
		return nil, nil
	}
	launcher, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	places := s.Mounts
	if s.Upper != nil {
		places = append(places, *s.Upper)
	}
	for _, place := range places {
		if err := inherit(place.FD); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(s)
	return []string{launcher, Step, string(text)}, err
}

// RunStep takes the arguments after [Step]. It returns only if the step fails, and then no sandbox
// has started.
func RunStep(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("%s is for the launcher itself", Step)
	}
	parent := unix.Getppid()
	var s step
	if err := bounded.JSON([]byte(args[0]), &s); err != nil {
		return fmt.Errorf("%s: %w", Step, err)
	}
	command := args[1:]
	// Capabilities belong to a thread, and only the thread that calls execve survives.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, mount := range s.Mounts {
		if err := unix.MoveMount(mount.FD, "", unix.AT_FDCWD, mount.Path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount what the session shares at %s: %w", mount.Path, err)
		}
		unix.Close(mount.FD)
	}
	if s.Upper != nil {
		if err := s.Upper.send(); err != nil {
			return err
		}
	}
	if s.Network != nil {
		if err := s.Network.run(); err != nil {
			return err
		}
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	return become(parent, command)
}

// send sends a descriptor of the folder over the socket, and closes both.
func (p *place) send() error {
	folder, err := unix.Open(p.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the upper layer %s: %w", p.Path, err)
	}
	if err := unix.Sendmsg(p.FD, []byte{0}, unix.UnixRights(folder), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err != nil {
		return fmt.Errorf("send the upper layer: %w", err)
	}
	unix.Close(p.FD)
	return nil
}

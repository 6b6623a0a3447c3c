package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// seatbelt is the program of macOS that starts another one with a profile (sandbox-exec(1)). Apple calls it
// deprecated; the profiles of Apple's own services are of this kind.
const seatbelt = "/usr/bin/sandbox-exec"

// startChild starts the sandbox's program as a child of this process, with the profile of the description.
func (s *Spec) startChild(child Child, attributes *syscall.SysProcAttr) (*os.Process, error) {
	cmd := exec.Command(seatbelt, append([]string{"-f", s.Seatbelt}, append(s.Command, child.Args...)...)...)
	cmd.Env, cmd.Dir, cmd.Stderr, cmd.ExtraFiles = []string{}, "/", child.Stderr, child.Files
	cmd.SysProcAttr = attributes
	if child.Stdin != nil { // nil in the interface would not be nil
		cmd.Stdin = child.Stdin
	}
	if err := cmd.Start(); err != nil {
		return nil, s.notStarted(err)
	}
	return cmd.Process, nil
}

func (s *Spec) notStarted(err error) *Refusal {
	return &Refusal{Problem: fmt.Sprintf("start %s: %s", seatbelt, reason(err)), Hint: "macOS has it; " + rebuild}
}

// CheckMachine reports whether the sandbox can start on this computer.
func (s *Spec) CheckMachine(context.Context) []Finding {
	err := unix.Access(seatbelt, unix.X_OK)
	if err == nil {
		err = unix.Access(s.Seatbelt, unix.R_OK)
	}
	if err != nil {
		err = s.notStarted(err)
	}
	return []Finding{needed("sandbox-exec", seatbelt, err)}
}

// EnterProfile returns at once: the launcher itself needs no rights.
func EnterProfile() {}

// RunStep refuses: there are no namespaces to do something in.
func RunStep([]string) error { return errors.New(Step + " is for Linux") }

// StartCarrier refuses: the build makes no machine with a network for macOS.
func (s *Spec) StartCarrier(int, *os.File, ...string) error {
	return &Refusal{Problem: "this sandbox has a network, and on macOS there is none yet", Hint: "build it with network = \"none\""}
}

// OpenProject opens a folder. No user but its owner is taken to decide about it, and root lends its rights to
// none.
func OpenProject(path string) (folder int, owned bool, err error) {
	folder, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return folder, false, err
}

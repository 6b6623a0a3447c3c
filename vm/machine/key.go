package machine

import (
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/snapshot"
)

// Key names the snapshots of this machine with an accelerator, on computers of one kind: whatever a
// machine is made of is part of it, because QEMU itself compares little. Paths of the
// store never change, so their names stand for the files. An emulated machine has of the
// host's processor only the rate of its clock, which depends on the model.
func (s *Spec) Key(accelerator Accelerator) (string, error) {
	launcher, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the launcher: %w", err)
	}
	of, err := processor(accelerator)
	if err != nil {
		return "", err
	}
	if accelerator != Emulated {
		var system unix.Utsname
		if err := unix.Uname(&system); err != nil {
			return "", err
		}
		of += unix.ByteSliceToString(system.Release[:]) + unix.ByteSliceToString(system.Version[:])
	}
	project, err := json.Marshal(s.shown)
	if err != nil {
		return "", err
	}
	return snapshot.Key(launcher, s.text, string(project), string(accelerator), of), nil
}

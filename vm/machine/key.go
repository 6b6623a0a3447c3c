package machine

import (
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/snapshot"
)

// Key names the snapshots of this machine with an accelerator, on this host: whatever a
// machine is made of is part of it, because QEMU itself compares little. Paths of the
// store never change, so their names stand for the files.
func (s *Spec) Key(accelerator Accelerator) (string, error) {
	launcher, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the launcher: %w", err)
	}
	processor, err := processor()
	if err != nil {
		return "", err
	}
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil {
		return "", err
	}
	project, err := json.Marshal(s.shown)
	if err != nil {
		return "", err
	}
	return snapshot.Key(launcher, s.text, string(project), string(accelerator),
		processor, unix.ByteSliceToString(system.Release[:]), unix.ByteSliceToString(system.Version[:])), nil
}

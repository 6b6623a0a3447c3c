package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/snapshot"
)

// ofProcessor lists the lines of /proc/cpuinfo that describe a processor. A machine that was saved
// on another processor hangs.
var ofProcessor = []string{"vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags", "bugs"}

// Key names the snapshots of this machine with an accelerator, on this host: whatever a
// machine is made of is part of it, because QEMU itself compares little. Paths of the
// store never change, so their names stand for the files.
func (s *Spec) Key(accelerator Accelerator) (string, error) {
	launcher, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("find the launcher: %w", err)
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(string(info), "\n\n")
	var processor []string
	for line := range strings.Lines(first) {
		name, _, _ := strings.Cut(line, ":")
		for _, wanted := range ofProcessor {
			if strings.TrimSpace(name) == wanted {
				processor = append(processor, line)
			}
		}
	}
	if len(processor) == 0 {
		return "", errors.New("/proc/cpuinfo does not say what the processor can do")
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
		strings.Join(processor, ""), unix.ByteSliceToString(system.Release[:]), unix.ByteSliceToString(system.Version[:])), nil
}

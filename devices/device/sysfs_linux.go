package device

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
)

// shownSubsystems are those whose libraries find a device by the kernel's files about it:
// libdrm reads /sys/dev/char, and ROCm's runtime the topology below /sys/class/kfd.
var shownSubsystems = []string{"accel", "drm", "kfd"}

// addKernelFiles adds what /sys has about a node, read-only and at its own path, with the
// two links by which it is found. Of everything else in /sys the sandbox has nothing.
func (p *planner) addKernelFiles(n node) {
	number := fmt.Sprintf("/sys/dev/char/%d:%d", unix.Major(uint64(n.stat.Rdev)), unix.Minor(uint64(n.stat.Rdev)))
	// First, because it is one call, and most nodes of a driver have nothing to show.
	target, err := os.Readlink(number + "/subsystem")
	subsystem := filepath.Base(target)
	if err != nil || !slices.Contains(shownSubsystems, subsystem) {
		return
	}
	real, err := filepath.EvalSymlinks(number)
	if err != nil || !inside(real, "/sys/devices") {
		return
	}
	// A node of a card is below the card: libraries ask for both.
	folder := real
	if card, err := filepath.EvalSymlinks(real + "/device"); err == nil && inside(card, "/sys/devices") {
		folder = card
	}
	for _, link := range []string{number, "/sys/class/" + subsystem + "/" + filepath.Base(real)} {
		p.links[link] = real
	}
	// Another node of the card has brought it.
	if isNew, err := p.take(folder, folder); err == nil && isNew {
		p.plan.Mounts = append(p.plan.Mounts, jail.DeviceMount{From: folder, To: folder})
	}
}

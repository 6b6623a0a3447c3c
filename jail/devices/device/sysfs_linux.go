package device

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/mountpoint"
)

// shownSubsystems have libraries that find a device by the kernel's files about it: libdrm
// reads /sys/dev/char, and ROCm's runtime the topology below /sys/class/kfd.
var shownSubsystems = []string{"accel", "drm", "kfd"}

// addKernelFiles adds the folder of /sys about a node, read-only and at its own path, and the
// two links that lead libraries there. The sandbox has no other files of /sys.
func (p *planner) addKernelFiles(n node) {
	number := fmt.Sprintf("/sys/dev/char/%d:%d", unix.Major(uint64(n.stat.Rdev)), unix.Minor(uint64(n.stat.Rdev)))
	// Most nodes of a driver end here, after one call.
	target, err := os.Readlink(number + "/subsystem")
	subsystem := filepath.Base(target)
	if err != nil || !slices.Contains(shownSubsystems, subsystem) {
		return
	}
	real, err := filepath.EvalSymlinks(number)
	if err != nil || !mountpoint.Inside(real, "/sys/devices") {
		return
	}
	// A node is below its card, and libraries ask for both.
	folder := real
	if card, err := filepath.EvalSymlinks(real + "/device"); err == nil && mountpoint.Inside(card, "/sys/devices") {
		folder = card
	}
	for _, link := range []string{number, "/sys/class/" + subsystem + "/" + filepath.Base(real)} {
		p.links[link] = real
	}
	// Another node of the card may have added it.
	if isNew, err := p.take(folder, folder); err == nil && isNew {
		p.plan.Mounts = append(p.plan.Mounts, jail.DeviceMount{From: folder, To: folder})
	}
}

package jail

import (
	"fmt"
	"os"
)

// DeviceFinder finds the devices of this machine for sandboxes. It is an interface so
// that the launcher of sandboxes without devices does not link the libraries of package
// device, which implements it.
type DeviceFinder interface {
	// Find returns the plan for the devices of a sandbox, or an error that names a
	// device it cannot have. It runs as the user who starts the sandbox.
	Find(*Spec, Request) (*DevicePlan, error)
	// Findings lists the devices of the machine and says which the sandbox can have.
	Findings(*Spec) []Finding
}

// DevicePlan is what the start of a sandbox adds for its devices.
type DevicePlan struct {
	// StoreFolders are folders that need mount points in the sandbox's store.
	StoreFolders []string
	// Before and After are flags of bubblewrap, around those for Mounts and Links.
	Before, After []string
	Mounts        []DeviceMount
	Links         []DeviceLink
	// Groups are groups of the host that own device nodes. If root starts the sandbox,
	// its user is in these groups and in no others.
	Groups []int
	// Usable checks, as the sandbox's user, that this user may open the nodes. Notes
	// are sentences about things that the sandbox goes without.
	Usable func() (notes []string, err error)
	Notes  []string
}

// DeviceMount is a file, a folder or a device node of the host, at a path of the sandbox.
type DeviceMount struct {
	From, To string
	IsNode   bool
}

// DeviceLink is a symbolic link of the sandbox.
type DeviceLink struct{ Path, Target string }

// ownGroups returns the groups of the user of a sandbox that root starts.
func (r Request) ownGroups() []int {
	if r.devices == nil {
		return nil
	}
	return r.devices.Groups
}

// storeAt is the folder of the outer namespace with the mount points for
// [DevicePlan.StoreFolders].
const storeAt = "/mount-points"

// needsStore reports whether the sandbox's store needs mount points, and the sandbox
// an outer namespace for them.
func (p *DevicePlan) needsStore() bool { return p != nil && len(p.StoreFolders) > 0 }

// flags returns the flags for the sandbox and, if it has one, for its outer namespace. show
// makes a path of the host visible in the outer namespace.
//
// A mount needs a mount point, but the sandbox does not map the owner of the store's
// folders. So the store becomes a read-only overlay of the closure and of a folder
// of the outer namespace with the mount points.
func (p *DevicePlan) flags(store string, show func(flag, from string) string) (outer, inside []string) {
	if p.needsStore() {
		for _, folder := range p.StoreFolders {
			outer = append(outer, "--dir", storeAt+"/store/"+folder)
		}
		inside = append(inside, "--overlay-src", store, "--overlay-src", storeAt, "--ro-overlay", "/nix")
	}
	inside = append(inside, p.Before...)
	for _, mount := range p.Mounts {
		flag := "--ro-bind"
		if mount.IsNode {
			flag = "--dev-bind"
		}
		inside = append(inside, flag, show(flag, mount.From), mount.To)
	}
	for _, link := range p.Links {
		inside = append(inside, "--symlink", link.Target, link.Path)
	}
	// /dev is a tmpfs without a size.
	inside = append(inside, "--remount-ro", "/dev")
	return outer, append(inside, p.After...)
}

// checkDevices checks that this user may open the device nodes, and logs notes about
// things that the sandbox goes without.
func (r Request) checkDevices() error {
	if r.devices == nil {
		return nil
	}
	notes, err := r.devices.Usable()
	if err != nil {
		return err
	}
	if r.logs {
		for _, note := range append(r.devices.Notes, notes...) {
			fmt.Fprintln(os.Stderr, "nix-sandbox-jail: note:", note)
		}
	}
	return nil
}

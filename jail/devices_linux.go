package jail

import (
	"fmt"
	"os"
	"strings"
)

// DeviceFinder finds what sandboxes with devices have of this machine. Package device has
// the one that there is. It is given from outside, so that the launcher of a sandbox
// without devices has none of its libraries.
type DeviceFinder interface {
	// Find returns what the start of a sandbox adds for its devices, or an error about a
	// device that cannot be had. It runs as whoever starts the sandbox.
	Find(*Spec, Request) (*DevicePlan, error)
	// Findings says which devices there are, and which of them the sandbox can have.
	Findings(*Spec) []Finding
}

// DevicePlan is what the start of a sandbox adds for its devices.
type DevicePlan struct {
	// StoreFolders are the folders that the sandbox's store gets as mount points.
	StoreFolders []string
	// Before and After are flags of bubblewrap, around those for Mounts.
	Before, After []string
	Mounts        []DeviceMount
	// Folders have the other mounts, and Links the links that are in none of them.
	Folders []DeviceFolder
	Links   []DeviceLink
	// Groups are those of the host that own device nodes. Where root starts the sandbox,
	// its user is in them, and in no others.
	Groups []int
	// Usable checks that the sandbox's user may open the nodes, as that user. Notes are
	// sentences about what the sandbox goes without.
	Usable func() (notes []string, err error)
	Notes  []string
	// isStaged says that bubblewrap finds the folders as they are to be, in a namespace that
	// has shown of the host.
	isStaged bool
	shown    []DeviceMount
}

// DeviceMount is a file, a folder or a device node of the host, at a path of the sandbox.
type DeviceMount struct {
	From, To         string
	IsNode, IsFolder bool
}

// ownGroups returns the groups of the user of a sandbox that root starts.
func (r Request) ownGroups() []int {
	if r.devices == nil {
		return nil
	}
	return r.devices.Groups
}

// show adds what the namespace of staged mounts has of the host.
func (p *DevicePlan) show(from, to string) {
	// What cannot be found here is an error of the mount.
	info, err := os.Stat(from)
	p.shown = append(p.shown, DeviceMount{From: from, To: to, IsFolder: err == nil && info.IsDir()})
}

// storeAt is where the outer namespace has the mount points of [DevicePlan.StoreFolders].
const storeAt = "/mount-points"

// needsStore reports whether the sandbox's store gets mount points, which takes an outer
// namespace.
func (p *DevicePlan) needsStore() bool { return p != nil && len(p.StoreFolders) > 0 }

// flags returns those of the sandbox, and those of its outer namespace, nil where it has
// none. show makes the path of the host visible in the outer namespace.
//
// A mount needs a mount point, and the store's folders belong to a user whom the sandbox
// does not map. So the store becomes an overlay, read-only, of the closure and of a folder
// of the outer namespace that has the mount points.
func (p *DevicePlan) flags(store string, show func(flag, from string) string) (outer, inside []string) {
	if p.needsStore() {
		for _, folder := range p.StoreFolders {
			outer = append(outer, "--dir", storeAt+"/store/"+folder)
		}
		inside = append(inside, "--overlay-src", store, "--overlay-src", storeAt, "--ro-overlay", "/nix")
	}
	inside = append(inside, p.Before...)
	add := func(mounts []DeviceMount, links []DeviceLink) {
		for _, mount := range mounts {
			flag := "--ro-bind"
			switch {
			case mount.IsNode && p.isStaged:
				continue // in /dev already
			case mount.IsNode:
				flag = "--dev-bind"
			}
			inside = append(inside, flag, show(flag, mount.From), mount.To)
		}
		for _, link := range links {
			if _, isInDev := inDev(link.Path); !isInDev || !p.isStaged {
				inside = append(inside, "--symlink", link.Target, link.Path)
			}
		}
	}
	add(p.Mounts, p.Links)
	for _, folder := range p.Folders {
		if p.isStaged {
			inside = append(inside, "--dir", folder.Path)
		} else {
			add(folder.Mounts, folder.Links)
		}
	}
	if p.isStaged {
		inside = append(inside, "--dir", "/dev")
	} else {
		// A tmpfs without a size.
		inside = append(inside, "--remount-ro", "/dev")
	}
	return outer, append(inside, p.After...)
}

// inDev returns the path below /dev.
func inDev(path string) (name string, is bool) { return strings.CutPrefix(path, "/dev/") }

// checkDevices checks that this user may open the device nodes, and writes notes about
// what the sandbox goes without.
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

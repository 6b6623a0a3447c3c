package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/vm/guest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/system"
)

// devices are the paths of what the host attached.
type devices struct {
	store         string // disk
	files, debian string // disks; both may be empty
	port          string
}

// findLimit is how long the kernel may take to find its devices.
const findLimit = 5 * time.Second

// find waits for the devices. The host gave them names, because the order in
// which a kernel numbers them is its own.
func find(files, debian bool) (devices, error) {
	const sys = "/sys"
	if err := system.Mount("sys", sys, "sysfs", 0, ""); err != nil {
		return devices{}, err
	}
	defer unix.Unmount(sys, 0)
	deadline := time.Now().Add(findLimit)
	for {
		found := devices{
			store:  system.Disk(guest.StoreDisk),
			files:  system.Disk(guest.FilesDisk),
			debian: system.Disk(guest.DebianDisk),
			port:   system.Port(guest.Port),
		}
		if found.store != "" && found.port != "" && (found.files != "" || !files) && (found.debian != "" || !debian) {
			return found, nil
		}
		if time.Now().After(deadline) {
			return found, fmt.Errorf("a device is missing after %s: %+v", findLimit, found)
		}
		time.Sleep(time.Millisecond)
	}
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/vm/guest"
)

// devices are the paths of what the host attached.
type devices struct {
	store         string // disk
	files, debian string // disks; both may be empty
	port          string
}

// findLimit is how long the kernel may take to find its devices.
const findLimit = 5 * time.Second

// load loads a kernel module from its file.
func load(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.FinitModule(int(file.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("loading the kernel module %s: %w", path, err)
	}
	return nil
}

// find waits for the devices. The host gave them names, because the order in
// which a kernel numbers them is its own.
func find(files, debian bool) (devices, error) {
	const sys = "/sys"
	if err := mount("sys", sys, "sysfs", 0, ""); err != nil {
		return devices{}, err
	}
	defer unix.Unmount(sys, 0)
	deadline := time.Now().Add(findLimit)
	for {
		found := devices{
			store:  named(sys+"/block/vd*/serial", guest.StoreDisk),
			files:  named(sys+"/block/vd*/serial", guest.FilesDisk),
			debian: named(sys+"/block/vd*/serial", guest.DebianDisk),
			port:   named(sys+"/class/virtio-ports/*/name", guest.Port),
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

// named returns the device whose name is in a file that the pattern matches, or
// an empty string.
func named(pattern, name string) string {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return ""
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(text)) != name {
			continue
		}
		device := "/dev/" + filepath.Base(filepath.Dir(file))
		if _, err := os.Stat(device); err == nil {
			return device
		}
	}
	return ""
}

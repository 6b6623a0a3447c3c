//go:build linux

// Package system does the common work of the first process of every virtual machine of this
// project: it loads modules, finds devices by the names that the host gave them, mounts file
// systems and leaves the initial RAM disk.
package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount mounts a file system at a folder, and makes the folder if it is missing.
func Mount(source, target, kind string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", kind, target, err)
	}
	return nil
}

// Enter makes a mount the root of this process and takes /dev along. On the initial
// RAM disk itself, pivot_root(2) fails, which every sandbox needs.
func Enter(root string) error {
	if err := os.MkdirAll(root+"/dev", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/dev", root+"/dev", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving /dev: %w", err)
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("entering the new root: %w", err)
	}
	return os.Chdir("/")
}

// LoadModule loads a kernel module from its file.
func LoadModule(path string) error {
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

// Disk returns the path of the virtio disk with a serial number, and Port that of the virtio port
// with a name, or "" if it does not exist yet. They read /sys, because kernels number devices in
// any order.
func Disk(serial string) string { return named("/sys/block/vd*/serial", serial) }

// Port is described with [Disk].
func Port(name string) string { return named("/sys/class/virtio-ports/*/name", name) }

// named returns the device with its name in a file that the pattern matches.
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

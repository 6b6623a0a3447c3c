//go:build linux

// Command nix-sandbox-vm-guest is the first process of a sandbox's virtual machine. It mounts
// the image with the sandbox's closure, starts the program that the host names (the description of
// a jail) as an ordinary user, and carries its standard streams to the host. It stays root beside
// the jail, which cannot reach it.
//
// The machine ends with the program, and when the host closes the control port.
//
// An emulated copy spends most of the time until its first answer on QEMU's translation of code
// that has not run in this QEMU process yet: 12 µs for each 5 instructions. So the start of a copy
// runs as little code as possible.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/system"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "nix-sandbox-vm-guest: error: this is the first process of a virtual machine, which nix-sandbox-vm starts")
		os.Exit(125)
	}
	// If the number is not set, the Go runtime asks the kernel for it every second: in a copy, in
	// the middle of its first call.
	runtime.GOMAXPROCS(1)
	if err := serve(); err != nil {
		// The host reports the last lines of the console.
		fmt.Fprintln(os.Stderr, "nix-sandbox-vm-guest: error:", err)
	}
	// With -no-reboot a restart ends QEMU; the machine has no power switch.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

func serve() error {
	spec, err := prepare()
	if err != nil {
		return err
	}
	groups, err := makeGroups(spec)
	if err != nil {
		return err
	}
	control, err := openPort(protocol.Control)
	if err != nil {
		return err
	}
	random, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	m := &machine{groups: groups, random: random, answers: json.NewEncoder(control)}
	for name, port := range map[string]**os.File{protocol.Input: &m.input, protocol.Output: &m.output, protocol.Log: &m.log} {
		if *port, err = openPort(name); err != nil {
			return err
		}
	}
	return m.follow(control)
}

// prepare makes the machine's mounts and returns its description. After this, the initial RAM disk
// is unreachable.
func prepare() (spec protocol.Spec, err error) {
	if err := system.Mount("dev", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return spec, err
	}
	text, err := os.ReadFile(protocol.SpecFile)
	if err != nil {
		return spec, err
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return spec, fmt.Errorf("%s: %w", protocol.SpecFile, err)
	}
	for _, module := range spec.Modules {
		if err := system.LoadModule(protocol.ModuleDir + "/" + module); err != nil {
			return spec, err
		}
	}
	const quiet = unix.MS_NOSUID | unix.MS_NODEV
	if err := system.Mount("sys", "/sys", "sysfs", quiet|unix.MS_NOEXEC, ""); err != nil {
		return spec, err
	}
	store, err := await("disk "+protocol.StoreDisk, func() string { return system.Disk(protocol.StoreDisk) })
	if err != nil {
		return spec, err
	}
	if err := unix.Unmount("/sys", 0); err != nil {
		return spec, fmt.Errorf("unmounting /sys: %w", err)
	}
	const root = "/root"
	if err := system.Mount(store, root, "erofs", quiet|unix.MS_RDONLY, ""); err != nil {
		return spec, err
	}
	if err := system.Enter(root); err != nil {
		return spec, err
	}
	for _, m := range []struct {
		source, target, kind, data string
	}{
		{"proc", "/proc", "proc", ""},
		{"sys", "/sys", "sysfs", ""},
		{"cgroup2", cgroups, "cgroup2", ""},
		{"tmp", "/tmp", "tmpfs", "mode=1777,size=1m"},
	} {
		if err := system.Mount(m.source, m.target, m.kind, quiet|unix.MS_NOEXEC, m.data); err != nil {
			return spec, err
		}
	}
	return spec, nil
}

// findLimit is how long a device or the jail may take to appear. The host has a limit of its own;
// this one only has to be longer than any start where every instruction is emulated and the
// processors are busy, which takes more than 30 s.
const findLimit = 2 * time.Minute

// await waits for a device.
func await(what string, find func() string) (string, error) {
	for deadline := time.Now().Add(findLimit); ; time.Sleep(time.Millisecond) {
		if path := find(); path != "" {
			return path, nil
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("the %s is missing after %s", what, findLimit)
		}
	}
}

// openPort opens a port once the host's end is there: a read before that is the end
// of the file.
func openPort(name string) (*os.File, error) {
	path, err := await("port "+name, func() string { return system.Port(name) })
	if err != nil {
		return nil, err
	}
	// Without O_NONBLOCK, so that a write waits for the host.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the port %s: %w", name, err)
	}
	for deadline := time.Now().Add(findLimit); ; time.Sleep(time.Millisecond) {
		state := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(state, 0); err == nil && state[0].Revents&unix.POLLHUP == 0 {
			return os.NewFile(uintptr(fd), name), nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the host does not open the port %s", name)
		}
	}
}

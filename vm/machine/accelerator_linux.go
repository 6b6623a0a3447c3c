package machine

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Hardware is the accelerator of this system that is no emulation.
const Hardware = KVM

const kvmDevice = "/dev/kvm"

// hardwareName is its name in sentences, and of the finding about it.
const hardwareName = "KVM"

// openHardware opens the device of the accelerator. The error says why that is not possible.
func openHardware() (*os.File, error) {
	device, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, fmt.Errorf("%s cannot be opened: %w", kvmDevice, err)
	}
	return device, nil
}

// hardwareArguments have QEMU use the device, which is its descriptor kvmFD.
func hardwareArguments() []string {
	return []string{"-cpu", "host", "-add-fd", "fd=" + strconv.Itoa(kvmFD) + ",set=1", "-accel", "kvm,device=/dev/fdset/1"}
}

// hardwareAdvice says how to make it work.
func hardwareAdvice() string { return adviceOn(kvmDevice) }

// adviceOn says how to make KVM work with this device. KVM is tried again only after the remembered
// result is deleted or the computer has booted again.
func adviceOn(device string) string {
	var stat unix.Stat_t
	switch err := unix.Stat(device, &stat); {
	case err != nil:
		return "switch on virtualization in the firmware, or nested virtualization where this is a virtual machine, and load the kernel module kvm_intel or kvm_amd"
	case unix.Access(device, unix.R_OK|unix.W_OK) != nil:
		group := strconv.Itoa(int(stat.Gid))
		if named, err := user.LookupGroupId(group); err == nil {
			group = named.Name
		}
		return fmt.Sprintf("%s belongs to the group %s: add the server's user to it, log in again, and delete $XDG_CACHE_HOME/nix-sandbox-mcp/vm", device, group)
	}
	return "switch on virtualization in the firmware, or nested virtualization where this is a virtual machine, and start the computer again"
}

// ofProcessor lists the lines of /proc/cpuinfo that describe a processor. A machine that was saved
// on another processor hangs.
var ofProcessor = []string{"vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags", "bugs",
	"CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"}

// ofModel lists the lines that describe its model.
var ofModel = []string{"vendor_id", "model name", "CPU implementer", "CPU part"}

// processor describes the processor of the host, as far as it matters to a machine with an accelerator.
func processor(accelerator Accelerator) (string, error) {
	wanted := ofProcessor
	if accelerator == Emulated {
		wanted = ofModel
	}

	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(string(info), "\n\n")
	var lines strings.Builder
	for line := range strings.Lines(first) {
		name, _, _ := strings.Cut(line, ":")
		if slices.Contains(wanted, strings.TrimSpace(name)) {
			lines.WriteString(line)
		}
	}
	if lines.Len() == 0 {
		return "", errors.New("/proc/cpuinfo does not say what the processor can do")
	}
	return lines.String(), nil
}

package machine

import (
	"os"

	"golang.org/x/sys/unix"
)

// Hardware is the accelerator of this system that is no emulation.
const Hardware = HVF

// hardwareName is its name in sentences, and of the finding about it.
const hardwareName = "the Hypervisor framework"

// openHardware returns nil: the framework has no device.
func openHardware() (*os.File, error) { return nil, nil }

// hardwareArguments have QEMU use the framework.
func hardwareArguments() []string { return []string{"-cpu", "host", "-accel", "hvf"} }

// hardwareAdvice says how to make it work.
func hardwareAdvice() string {
	return "start the server on the Mac itself, and not in a virtual machine; QEMU must have the entitlement com.apple.security.hypervisor, as that of nixpkgs has"
}

// processor describes the processor of the host.
func processor(Accelerator) (string, error) { return unix.Sysctl("machdep.cpu.brand_string") }

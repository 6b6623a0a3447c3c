package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// Accelerator says how the instructions of a machine are executed.
type Accelerator string

const (
	// KVM is the hardware, by /dev/kvm of Linux.
	KVM Accelerator = "kvm"
	// HVF is the hardware, by the Hypervisor framework of macOS.
	HVF Accelerator = "hvf"
	// Emulated is QEMU itself, in software: about ten times slower.
	Emulated Accelerator = "emulated"
)

// upLimit is how long a machine may take until its first process answers. A machine
// comes up in 0.5 s on the hardware, and in 2 to 6 s when it is emulated.
func (a Accelerator) upLimit() time.Duration {
	if a == Hardware {
		return 5 * time.Second
	}
	return 110 * time.Second
}

// LoadLimit is how long an agent may take until its interpreter has loaded. A server waits
// as long as its own limit says, which may be shorter.
const LoadLimit = 4 * time.Minute

// Known is the result of an attempt to use the hardware on this computer.
type Known struct {
	Works   bool
	Problem string // empty if it works
}

// Memory remembers whether the hardware works, in a file of a folder, until the computer restarts.
// That /dev/kvm can be opened does not prove it: only a machine that comes up does.
type Memory struct{ Folder string }

func (m Memory) file() string { return filepath.Join(m.Folder, string(Hardware)) }

// Recall returns the remembered result; found is false if no machine was started yet.
func (m Memory) Recall() (known Known, found bool) {
	if m.Folder == "" {
		return Known{}, false
	}
	text, err := os.ReadFile(m.file())
	boot, bootErr := host.BootID()
	first, rest, _ := strings.Cut(string(text), " ")
	if err != nil || bootErr != nil || first != boot {
		return Known{}, false
	}
	problem, _ := strings.CutPrefix(rest, "works")
	return Known{Works: problem == "", Problem: problem}, true
}

// IsKnown reports whether a machine was started since the computer did.
func (m Memory) IsKnown() bool {
	_, found := m.Recall()
	return found
}

// Remember stores the result of a start.
func (m Memory) Remember(known Known) error {
	boot, err := host.BootID()
	if err != nil || m.Folder == "" {
		return err
	}
	text := boot + " " + known.Problem
	if known.Works {
		text = boot + " works"
	}
	if err := os.MkdirAll(m.Folder, 0o700); err != nil {
		return err
	}
	return os.WriteFile(m.file(), []byte(text), 0o600)
}

// ClockRate returns the clock rate of the host in kHz, from /proc/cpuinfo, or 2 GHz if that
// contains none. An emulated kernel that measures the rate hangs in a third of all starts; one that
// is told does not, and the number need not be exact.
func ClockRate() (int, error) {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // macOS has none
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		name, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) != "cpu MHz" {
			continue
		}
		mhz, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/cpuinfo: %w", err)
		}
		return int(mhz * 1000), nil
	}
	return 2_000_000, nil
}

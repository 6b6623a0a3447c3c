package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	accelKVM = "kvm"
	accelTCG = "tcg"
)

// accels returns the accelerators to try, in order. That /dev/kvm can be opened
// does not prove that KVM works: only a machine that starts does. A failed start
// is recorded until the host restarts.
func accels(o options) []string {
	if o.accel != "auto" {
		return []string{o.accel}
	}
	file, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return []string{accelTCG}
	}
	file.Close()
	known, err := os.ReadFile(filepath.Join(o.cache, "no-kvm"))
	if id, idErr := bootID(); err == nil && idErr == nil && string(known) == id {
		return []string{accelTCG}
	}
	return []string{accelKVM, accelTCG}
}

func rememberNoKVM(cache string) error {
	id, err := bootID()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(cache, "no-kvm"), []byte(id), 0o644)
}

func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// clock is the host's clock rate in kHz. An emulated kernel that measures it
// hangs in a third of all starts; told, it does not.
func clock() (int, error) {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
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
	return 0, errors.New("/proc/cpuinfo names no clock rate (cpu MHz)")
}

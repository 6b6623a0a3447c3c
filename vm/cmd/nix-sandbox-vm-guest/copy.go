//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setClock sets the time, in nanoseconds since 1970.
func setClock(now int64) error {
	value := unix.NsecToTimeval(now)
	if err := unix.Settimeofday(&value); err != nil {
		return fmt.Errorf("setting the clock: %w", err)
	}
	return nil
}

// Requests of random(4).
const (
	addEntropy = 0x40085203 // RNDADDENTROPY
	reseedCRNG = 0x5207     // RNDRESEEDCRNG
)

// reseed gives the kernel's random numbers a seed that no copy of this machine has.
func reseed(seed []byte) error {
	if len(seed) < 32 {
		return fmt.Errorf("the seed has %d bytes, want at least 32", len(seed))
	}
	device, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	// struct rand_pool_info: bits, bytes, and the bytes.
	pool := binary.NativeEndian.AppendUint32(nil, uint32(8*len(seed)))
	pool = binary.NativeEndian.AppendUint32(pool, uint32(len(seed)))
	pool = append(pool, seed...)
	if _, _, err := unix.Syscall(unix.SYS_IOCTL, device.Fd(), addEntropy, uintptr(unsafe.Pointer(&pool[0]))); err != 0 {
		return fmt.Errorf("adding a seed to the kernel's: %w", err)
	}
	if _, _, err := unix.Syscall(unix.SYS_IOCTL, device.Fd(), reseedCRNG, 0); err != 0 {
		return fmt.Errorf("reseeding the kernel's random numbers: %w", err)
	}
	return nil
}

// freezeLimit is how long processes may take to stop, on a busy host that emulates.
const freezeLimit = 20 * time.Second

// freeze stops all processes of the sandbox, or has them go on.
func (g *groups) freeze(frozen bool) error {
	value := map[bool]string{true: "1", false: "0"}[frozen]
	if err := set(g.sandbox, "cgroup.freeze", value); err != nil {
		return err
	}
	for deadline := time.Now().Add(freezeLimit); ; time.Sleep(200 * time.Microsecond) {
		events, err := os.ReadFile(filepath.Join(g.sandbox, "cgroup.events"))
		if err != nil {
			return err
		}
		if strings.Contains(string(events), "frozen "+value) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the sandbox does not reach frozen %s within %s", value, freezeLimit)
		}
	}
}

//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
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

// reseed gives the kernel's random number generator, by its device, a seed that no other copy of
// this machine has.
func reseed(random *os.File, seed []byte) error {
	if len(seed) < 32 {
		return fmt.Errorf("the seed has %d bytes, want at least 32", len(seed))
	}
	// struct rand_pool_info: bits, bytes, and the bytes.
	pool := binary.NativeEndian.AppendUint32(nil, uint32(8*len(seed)))
	pool = binary.NativeEndian.AppendUint32(pool, uint32(len(seed)))
	pool = append(pool, seed...)
	if _, _, err := unix.Syscall(unix.SYS_IOCTL, random.Fd(), addEntropy, uintptr(unsafe.Pointer(&pool[0]))); err != 0 {
		return fmt.Errorf("adding a seed to the kernel's: %w", err)
	}
	if _, _, err := unix.Syscall(unix.SYS_IOCTL, random.Fd(), reseedCRNG, 0); err != 0 {
		return fmt.Errorf("reseeding the kernel's random numbers: %w", err)
	}
	return nil
}

// freezeLimit is how long processes may take to stop, on a busy host that emulates.
const freezeLimit = 20 * time.Second

// freeze stops all processes of the sandbox.
func (g *groups) freeze() error {
	if err := g.setFrozen("1"); err != nil {
		return err
	}
	for deadline := time.Now().Add(freezeLimit); ; time.Sleep(200 * time.Microsecond) {
		events, err := os.ReadFile(filepath.Join(g.sandbox, "cgroup.events"))
		if err != nil {
			return err
		}
		if strings.Contains(string(events), "frozen 1") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the sandbox is not frozen within %s", freezeLimit)
		}
	}
}

// trim allocates the free memory, which the kernel zeroes for that, and gives it back. It leaves
// the kernel's own reserve, so that no file is dropped from the page cache and no process is
// killed.
func trim() error {
	text, err := os.ReadFile("/proc/sys/vm/min_free_kbytes")
	if err != nil {
		return err
	}
	kept, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return fmt.Errorf("/proc/sys/vm/min_free_kbytes: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return fmt.Errorf("asking how much memory is free: %w", err)
	}
	size := (int64(info.Freeram)*int64(info.Unit) - 2*kept<<10) &^ int64(os.Getpagesize()-1)
	if size <= 0 {
		return nil
	}
	memory, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("taking %d bytes of memory: %w", size, err)
	}
	for at := 0; at < len(memory); at += os.Getpagesize() {
		memory[at] = 0
	}
	return unix.Munmap(memory)
}

// thaw has all processes of the sandbox go on, each as soon as it gets the processor.
func (g *groups) thaw() error { return g.setFrozen("0") }

func (g *groups) setFrozen(value string) error {
	if _, err := unix.Pwrite(int(g.frozen.Fd()), []byte(value), 0); err != nil {
		return fmt.Errorf("setting cgroup.freeze of %s to %s: %w", g.sandbox, value, err)
	}
	return nil
}

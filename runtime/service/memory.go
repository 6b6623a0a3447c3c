package service

import (
	"bytes"
	"fmt"
	"os"
)

// leastFree is the part of the machine's memory that sessions leave to others: a twentieth.
const leastFree = 20

// isShortOfMemory reports whether this machine has less memory left than it should, as the kernel
// estimates it (MemAvailable in proc_meminfo(5)).
func isShortOfMemory() bool {
	text, err := os.ReadFile("/proc/meminfo")
	return err == nil && isShort(text)
}

func isShort(meminfo []byte) bool {
	total, available := uint64(0), uint64(0)
	for line := range bytes.Lines(meminfo) {
		_, _ = fmt.Sscanf(string(line), "MemTotal: %d kB", &total)
		_, _ = fmt.Sscanf(string(line), "MemAvailable: %d kB", &available)
	}
	return available > 0 && available < total/leastFree
}

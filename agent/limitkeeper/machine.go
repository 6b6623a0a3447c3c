package limitkeeper

import (
	"bytes"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
)

// New kernels have new kinds of memory that this package cannot count. The keeper
// therefore watches the kernel memory of the whole machine. If it grows by more than a
// sandbox may have while the sandbox runs, the keeper stops the sandbox again and again
// for a moment, and compares: memory that grows while the sandbox runs and not while it
// is stopped is its own. The growth of others falls into both.
//
// A sandbox that takes less than trialNoise in each trialWindow is not found.

const (
	// minGrowth is how much the kernel's memory may grow beside a small sandbox, in
	// bytes; beside others it is half of their limit.
	minGrowth = 128 << 20
	// trialRounds is how often a trial stops the sandbox, each time for trialWindow
	// after it has run for as long.
	trialRounds = 16
	trialWindow = 10 * time.Millisecond
	// trialNoise is a difference in growth that says something, in bytes. The kernel
	// adds up its counters with a delay of up to half a megabyte for each processor.
	trialNoise = 1 << 20
	// enoughGuilt is how many rounds have to say that the sandbox is responsible. For
	// one that is not, each round is as likely to say the opposite.
	enoughGuilt = 12
)

// machineWatch finds a sandbox that takes kernel memory of a kind that is not counted. The
// rounds of all trials count together, because growth may come in bursts that most rounds
// miss.
type machineWatch struct {
	allowed int64 // growth before a trial, in bytes
	base    int64 // the memory that is not counted, from which it grows
	guilty  int   // rounds in which it grew while the sandbox ran
	not     int   // rounds in which it grew while the sandbox was stopped
}

func newMachineWatch(limits Limits) machineWatch {
	return machineWatch{allowed: max(limits.Memory/2, minGrowth), base: kernelMemory()}
}

// suspicious reports whether it is time for a trial. now is the memory that is not counted.
func (w *machineWatch) suspicious(now int64) bool {
	w.base = min(w.base, now)
	return now-w.base > w.allowed
}

// note takes the growth in the two halves of a round.
func (w *machineWatch) note(running, stopped int64) {
	switch {
	case running-stopped > trialNoise:
		w.guilty++
	case stopped-running > trialNoise:
		w.not++
	}
}

// responsible reports whether the rounds so far show that the memory is the sandbox's.
func (w *machineWatch) responsible() bool {
	return w.guilty >= enoughGuilt && 8*w.not <= w.guilty
}

// settle has the next trial wait for a quarter of the growth before the first one.
func (w *machineWatch) settle(now int64) { w.base = now - w.allowed*3/4 }

// try runs a trial and reports whether the sandbox is responsible. It stops the
// sandbox for half of the time, and ends early if the memory of the processes needs
// attention.
func (k *Keeper) try() (responsible bool, err error) {
	for range trialRounds {
		began, counted := kernelMemory(), k.scanner.kernel
		time.Sleep(trialWindow)
		resume := k.scanner.stop()
		stopped := kernelMemory()
		time.Sleep(trialWindow)
		ended := kernelMemory()
		usage, err := k.scanner.scan(k.limits.Tasks)
		resume()
		k.machine.note(stopped-began-(k.scanner.kernel-counted), ended-stopped)
		if err != nil || k.machine.responsible() {
			return err == nil, err
		}
		if usage.Memory() > k.limits.Memory {
			break
		}
	}
	return false, nil
}

// kernelMemory returns the machine's memory that the kernel itself uses and cannot
// reclaim, in bytes. ZFS keeps its cache there, which is left out because the kernel
// can reclaim it.
func kernelMemory() (total int64) {
	text, _ := bounded.ReadFile("/proc/meminfo", maxStatus)
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "SUnreclaim", "KernelStack", "PageTables", "SecPageTables", "VmallocUsed", "Percpu":
			total += number(bytes.TrimSpace(value)) << 10
		}
	}
	cache, _ := bounded.ReadFile("/proc/spl/kstat/zfs/arcstats", maxStatus)
	for line := range bytes.Lines(cache) {
		if words := bytes.Fields(line); len(words) == 3 && string(words[0]) == "size" {
			total -= number(words[2])
		}
	}
	return total
}

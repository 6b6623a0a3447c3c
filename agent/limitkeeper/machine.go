package limitkeeper

import (
	"bytes"
	"time"
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
	memory  *file // /proc/meminfo
	zfs     *file // the size of ZFS's cache, if there is ZFS
	allowed int64 // growth before a trial, in bytes
	base    int64 // the memory that is not counted, from which it grows
	guilty  int   // rounds in which it grew while the sandbox ran
	not     int   // rounds in which it grew while the sandbox was stopped
}

func newMachineWatch(limits Limits) machineWatch {
	w := machineWatch{
		memory:  openFile("/proc/meminfo", maxStatus),
		zfs:     openFile("/proc/spl/kstat/zfs/arcstats", maxStatus),
		allowed: max(limits.Memory/2, minGrowth),
	}
	w.base = w.kernelMemory()
	return w
}

func (w *machineWatch) close() {
	w.memory.Close()
	w.zfs.Close()
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

// rebase has the next trial wait for a quarter of the growth before the first one.
func (w *machineWatch) rebase(now int64) { w.base = now - w.allowed*3/4 }

// try runs a trial and reports whether the sandbox is responsible. It stops the
// sandbox for half of the time, and ends early if the memory of the processes needs
// attention.
func (k *Keeper) try() (responsible bool, err error) {
	for range trialRounds {
		began, counted := k.machine.kernelMemory(), k.scanner.kernel
		time.Sleep(trialWindow)
		resume := k.scanner.stop()
		stopped := k.machine.kernelMemory()
		time.Sleep(trialWindow)
		ended := k.machine.kernelMemory()
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
func (w *machineWatch) kernelMemory() (total int64) {
	text, _ := w.memory.read()
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "SUnreclaim", "KernelStack", "PageTables", "SecPageTables", "VmallocUsed", "Percpu":
			total += number(value) << 10
		}
	}
	text, _ = w.zfs.read()
	for line := range bytes.Lines(text) {
		if words := bytes.Fields(line); len(words) == 3 && string(words[0]) == "size" {
			total -= number(words[2])
		}
	}
	return total
}

package backends

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// processorTime is what a machine has used, with its launcher and QEMU.
func (m *machine) processorTime() (used time.Duration) {
	for _, pid := range procfs.Tree(m.cmd.Process.Pid) {
		if p, err := procfs.Read(pid); err == nil {
			own, _ := p.Times()
			used += own
		}
	}
	return used
}

// copyFile copies a file as the machine's memory was: into a new one, pages that are not
// holes alone.
func copyFile(b *testing.B, from, to string) time.Duration {
	b.Helper()
	source, target := must.Get(os.Open(from))(b), must.Get(os.Create(to))(b)
	defer source.Close()
	defer target.Close()
	buffer := make([]byte, 1<<20)
	began := time.Now()
	for at := int64(0); ; {
		data, err := unix.Seek(int(source.Fd()), at, unix.SEEK_DATA)
		if err != nil { // a hole up to the end
			return time.Since(began)
		}
		at = must.Get(unix.Seek(int(source.Fd()), data, unix.SEEK_HOLE))(b)
		for data < at {
			n := must.Get(source.ReadAt(buffer[:min(int64(len(buffer)), at-data)], data))(b)
			must.Get(target.WriteAt(buffer[:n], data))(b)
			data += int64(n)
		}
	}
}

// BenchmarkSaved branches, suspends and wakes a session of python with 100 MB of data. Its
// units are what each step took of time, what it took of processor time (cpu), and what
// a copy of the same memory took on the same file system.
func BenchmarkSaved(b *testing.B) {
	folder, cache := artifact(b, "python"), shared(b)
	sums := map[string]float64{}
	add := func(unit string, d time.Duration) { sums[unit] += float64(d.Microseconds()) / 1000 }
	step := func(name string, m *machine, do func()) {
		began, before := time.Now(), m.processorTime()
		do()
		add("ms-"+name, time.Since(began))
		if used := m.processorTime() - before; used > 0 {
			add("cpu-ms-"+name, used)
		}
	}
	fresh := func(name, from string) (m *machine) {
		began := time.Now()
		m = start(b, folder, cache, from)
		m.run("1")
		add("ms-"+name, time.Since(began))
		add("cpu-ms-"+name, m.processorTime())
		return m
	}
	fresh("snapshot", "") // which is made, and is not counted
	clear(sums)
	for range b.N {
		parent := b.TempDir()
		fresh("copy", "")
		m := start(b, folder, cache, "")
		m.run("import os; data = os.urandom(100 << 20)")
		branch, saved := filepath.Join(parent, "branch"), filepath.Join(parent, "saved")
		var a answer
		step("branch", m, func() { a = m.save(branch, true) })
		add("ms-branch-pause", time.Duration(a.PauseMS)*time.Millisecond)
		add("ms-copy-of-memory", copyFile(b, filepath.Join(branch, "memory"), filepath.Join(parent, "copied")))
		fresh("child", branch)
		sums["MiB-on-disk"] += float64(a.Bytes) / (1 << 20)
		began := time.Now()
		m.saved(saved, false)
		add("ms-suspend", time.Since(began))
		fresh("wake", saved)
	}
	b.ReportMetric(0, "ns/op")
	for unit, sum := range sums {
		b.ReportMetric(sum/float64(b.N), unit)
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	vm "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/machines"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// machines is the table of the aims of sandboxes that are virtual machines.
type machines struct {
	Isolation string       `json:"isolation"` // KVM, or emulated
	Rows      []machineRow `json:"rows"`
}

// A machineRow is something that a machine does, the median of several rounds.
type machineRow struct {
	Name   string  `json:"name"`
	Time   float64 `json:"ms,omitempty"`
	CPU    float64 `json:"cpu_ms,omitempty"`
	Aims   []aim   `json:"aims,omitempty"`
	Rounds int     `json:"rounds"`

	took, used []time.Duration
}

// An aim is the most that a figure of a row should be, and its median.
type aim struct {
	Unit     string  `json:"unit"`
	Most     float64 `json:"most"`
	Measured float64 `json:"measured"`

	values []float64
}

// The rows of the table, in its order.
const (
	warmRow = iota
	jailRow
	cloneRow
	coldRow
	callRow
	suspendRow
	wakeRow
	branchRow
	copyRow
	childRow
	waitRow
	diskRow
)

func newMachines() machines {
	return machines{Rows: []machineRow{
		warmRow:    {Name: "call, one clone waiting", Aims: []aim{{Unit: "ms", Most: 15}, {Unit: "× a jail's time", Most: 8}}},
		jailRow:    {Name: "the same of a jail, to compare"},
		cloneRow:   {Name: "clone, none waiting, to its first result", Aims: []aim{{Unit: "× a cold start's CPU", Most: 1.0 / 8}}},
		coldRow:    {Name: "cold start to its first result, to compare"},
		callRow:    {Name: "call in a session", Aims: []aim{{Unit: "ms", Most: 10}}},
		suspendRow: {Name: "suspend a session with 100 MB", Aims: []aim{{Unit: "ms", Most: 400}}},
		wakeRow:    {Name: "wake it, to its first result", Aims: []aim{{Unit: "ms", Most: 600}}},
		branchRow:  {Name: "branch it: the time it stands still", Aims: []aim{{Unit: "ms", Most: 300}, {Unit: "× a copy of its pages", Most: 1.3}}},
		copyRow:    {Name: "copy of the same pages, to compare"},
		childRow:   {Name: "the branch, to its first result", Aims: []aim{{Unit: "ms", Most: 350}}},
		waitRow:    {Name: "clone that waits", Aims: []aim{{Unit: "MiB of its own", Most: 40}, {Unit: "ms of CPU in 3 s", Most: 0}}},
		diskRow:    {Name: "disk of the suspended session", Aims: []aim{{Unit: "× what the guest uses", Most: 1.2}}},
	}}
}

// add adds a round to a row: what it took, of processor time too, and the figures that
// its aims are about.
func (m *machines) add(row int, took, used time.Duration, figures ...float64) {
	r := &m.Rows[row]
	r.Rounds++
	r.took, r.used = append(r.took, took), append(r.used, used)
	for i, figure := range figures {
		r.Aims[i].values = append(r.Aims[i].values, figure)
	}
}

// sum computes the medians.
func (m *machines) sum() {
	for i := range m.Rows {
		r := &m.Rows[i]
		r.Time, r.CPU = milliseconds(median(r.took)), milliseconds(median(r.used))
		for i := range r.Aims {
			r.Aims[i].Measured = median(r.Aims[i].values)
		}
	}
}

// table is the table for people. A row has a line for each of its aims.
func (m *machines) table() table {
	t := table{{"virtual machines, " + m.Isolation + ", python", "p50 ms", "CPU ms", "measured", "aim", "reached", "rounds"}}
	for _, r := range m.Rows {
		line := []string{r.Name, number(r.Time), number(r.CPU), "", "", "", fmt.Sprint(r.Rounds)}
		if r.Rounds == 0 {
			t = append(t, line)
			continue
		}
		for i, a := range r.Aims {
			if i > 0 {
				t = append(t, line)
				line = make([]string, len(line))
			}
			reached := "no"
			if a.Measured <= a.Most {
				reached = "yes"
			}
			line[3], line[4], line[5] = fmt.Sprintf("%.3g %s", a.Measured, a.Unit), fmt.Sprintf("≤ %.3g", a.Most), reached
		}
		t = append(t, line)
	}
	return t
}

// Bounds of the measurements of machines.
const (
	machineRounds = 5
	machineCalls  = 20 // of a session, a round
	restTime      = time.Second
	restLimit     = 10 * time.Second
	waitTime      = 3 * time.Second // as the row says
)

// machineBench measures the sandbox in a folder. All rounds share a cache.
type machineBench struct {
	*bench
	folder, cache string
	result        machines
}

// machines measures what virtual machines cost. All that is compared takes turns.
func (b *bench) machines(ctx context.Context, folder string, say func(string, ...any)) (machines, error) {
	m := &machineBench{bench: b, cache: filepath.Join(b.temp, "cache"), result: newMachines()}
	err := m.measure(ctx, folder, say)
	m.result.sum()
	return m.result, err
}

func (m *machineBench) measure(ctx context.Context, folder string, say func(string, ...any)) (err error) {
	if !m.has("python") {
		return errors.New("the server has no environment of type python, to compare with")
	}
	// The metadata of a server has absolute paths.
	if m.folder, err = filepath.EvalSymlinks(folder); err == nil {
		m.folder, err = filepath.Abs(m.folder)
	}
	if err != nil {
		return fmt.Errorf("find the virtual machine (nix-build tests/backends/sandboxes.nix -A python): %w", err)
	}
	if m.result.Isolation, err = m.isolation(ctx); err != nil {
		return err
	}
	say("virtual machines, %s: the first start", m.result.Isolation)
	first, _, _, err := m.first("")
	if err != nil {
		return err
	}
	first.Close()
	if saved, _ := filepath.Glob(filepath.Join(m.cache, "nix-sandbox-mcp/vm/snapshots/*/meta")); len(saved) == 0 {
		return fmt.Errorf("the first start saved no machine for clones: %s", brief(first.Log.String()))
	}
	machine, err := m.served(ctx)
	if err != nil {
		return err
	}
	defer machine.Close()
	jail := m.call(m.found["python"], "jail", m.warm, "", "print(42)", "42")
	if err := jail.Prepare(ctx); err != nil {
		return err
	}
	defer jail.Close()
	for range warmUps {
		for _, c := range []*served{machine, jail} {
			if _, _, err := stocked(ctx, c); err != nil {
				return err
			}
		}
	}
	for round := range machineRounds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		say("virtual machines: round %d of %d", round+1, machineRounds)
		if err := errors.Join(m.warmCalls(ctx, machine, jail), m.starts(), m.saved(round), m.waiting(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// isolation asks the sandbox whether KVM works, which it remembers in the cache.
func (m *machineBench) isolation(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(m.folder, "bin/check"))
	cmd.Env = []string{"XDG_CACHE_HOME=" + m.cache}
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask the virtual machine what it needs: %w", err)
	}
	var report struct {
		Findings []struct {
			Name, Found string
			OK, Needed  bool
		}
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return "", fmt.Errorf("ask the virtual machine what it needs: %w", err)
	}
	isolation := "emulated"
	for _, f := range report.Findings {
		if f.Needed && !f.OK {
			return "", fmt.Errorf("virtual machines do not start here: %s: %s", f.Name, f.Found)
		}
		if f.Name == "KVM" && f.OK {
			isolation = "KVM"
		}
	}
	return isolation, nil
}

// served is a call of a server that has this sandbox alone, one that waits.
func (m *machineBench) served(ctx context.Context) (*served, error) {
	var fields, whole map[string]any
	for name, value := range map[string]*map[string]any{filepath.Join(m.folder, "metadata.json"): &fields, m.warm: &whole} {
		text, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(text, value)
		}
		if err != nil {
			return nil, fmt.Errorf("read the metadata %s: %w", name, err)
		}
	}
	const name = "machine"
	fields["name"], fields["prewarm"] = name, 1
	fields["exec"], fields["session_exec"] = filepath.Join(m.folder, "bin/run"), filepath.Join(m.folder, "bin/session-run")
	whole["environments"] = map[string]any{name: fields}
	text, err := json.Marshal(whole)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(m.temp, "machine.json")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return nil, err
	}
	c := &served{name: name, environment: name, code: "print(42)", want: "42", launch: launch{
		program: m.server, metadata: file,
		env: append([]string{"XDG_CACHE_HOME=" + m.cache, "NIX_SANDBOX_START_SECONDS=60"}, m.env...),
	}}
	return c, c.Prepare(ctx)
}

// stocked makes a call, and waits until the next sandbox waits. Its processor time counts.
func stocked(ctx context.Context, c *served) (took, used time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, vm.Limit)
	defer cancel()
	root := c.server.PID()
	before := treeCPU(root)
	took, err = c.Call(ctx)
	rest(ctx, root)
	return took, treeCPU(root) - before, err
}

// rest waits until a process tree uses next to nothing for a while, in which a machine
// that waits comes to stand still. The server looks after its sandboxes meanwhile.
func rest(ctx context.Context, root int) {
	before := treeCPU(root)
	for end := time.Now().Add(restLimit); time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(restTime)
		now := treeCPU(root)
		if now-before < restTime/40 {
			return
		}
		before = now
	}
}

// warmCalls measures a call with a clone that waits, and the same of a jail.
func (m *machineBench) warmCalls(ctx context.Context, machine, jail *served) error {
	took, used, err := stocked(ctx, machine)
	if err != nil {
		return err
	}
	base, baseUsed, err := stocked(ctx, jail)
	if err != nil {
		return err
	}
	m.result.add(warmRow, took, used, milliseconds(took), float64(took)/float64(base))
	m.result.add(jailRow, base, baseUsed)
	return nil
}

// first starts a machine up to its first result. The caller closes it.
func (m *machineBench) first(from string, environ ...string) (_ *vm.Machine, took, used time.Duration, err error) {
	began := time.Now()
	started, err := vm.Start(m.folder, m.cache, from, environ...)
	if err != nil {
		return nil, 0, 0, err
	}
	if _, err := started.Run("1"); err != nil {
		started.Close()
		return nil, 0, 0, err
	}
	took = time.Since(began)
	return started, took, started.ProcessorTime(), nil
}

// fresh is first of a machine that ends then.
func (m *machineBench) fresh(from string, environ ...string) (took, used time.Duration, err error) {
	started, took, used, err := m.first(from, environ...)
	if err == nil {
		started.Close()
	}
	return took, used, err
}

// starts measures a cold start, a clone, and calls in that.
func (m *machineBench) starts() error {
	cold, coldUsed, err := m.fresh("", "NIX_SANDBOX_VM_SNAPSHOTS=0")
	if err != nil {
		return err
	}
	m.result.add(coldRow, cold, coldUsed)
	clone, took, used, err := m.first("")
	if err != nil {
		return err
	}
	defer clone.Close()
	m.result.add(cloneRow, took, used, float64(used)/float64(coldUsed))
	var calls []time.Duration
	before := clone.ProcessorTime()
	for range machineCalls {
		began := time.Now()
		if _, err := clone.Run("1"); err != nil {
			return err
		}
		calls = append(calls, time.Since(began))
	}
	took = median(calls)
	m.result.add(callRow, took, (clone.ProcessorTime()-before)/machineCalls, milliseconds(took))
	return nil
}

// saved branches a session with 100 MB of data, suspends and wakes it.
func (m *machineBench) saved(round int) error {
	parent := filepath.Join(m.temp, fmt.Sprint("saved-", round))
	if err := os.Mkdir(parent, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(parent)
	session, err := vm.Start(m.folder, m.cache, "")
	if err != nil {
		return err
	}
	defer session.Close()
	if _, err := session.Run("import os; data = os.urandom(100 << 20)"); err != nil {
		return err
	}
	text, err := session.Run("sizes = {line.split()[0]: int(line.split()[1]) for line in open('/proc/meminfo')}; print(sizes['MemTotal:'] - sizes['MemFree:'])")
	if err != nil {
		return err
	}
	inUse, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64) // KiB
	if err != nil {
		return err
	}

	branch, asleep := filepath.Join(parent, "branch"), filepath.Join(parent, "asleep")
	before := session.ProcessorTime()
	a, err := session.Saved(branch, true)
	if err != nil {
		return err
	}
	used := session.ProcessorTime() - before
	copied, err := copyFile(filepath.Join(branch, "memory"), filepath.Join(parent, "copied"))
	if err != nil {
		return err
	}
	pause := time.Duration(a.PauseMS) * time.Millisecond
	m.result.add(branchRow, pause, used, milliseconds(pause), float64(pause)/float64(copied))
	m.result.add(copyRow, copied, 0)
	took, used, err := m.fresh(branch)
	if err != nil {
		return err
	}
	m.result.add(childRow, took, used, milliseconds(took))

	before = session.ProcessorTime()
	began := time.Now()
	if a, err = session.Saved(asleep, false); err != nil {
		return err
	}
	took = time.Since(began)
	m.result.add(suspendRow, took, max(0, session.ProcessorTime()-before), milliseconds(took))
	m.result.add(diskRow, 0, 0, float64(a.Bytes)/float64(inUse<<10))
	if took, used, err = m.fresh(asleep); err != nil {
		return err
	}
	m.result.add(wakeRow, took, used, milliseconds(took))
	return nil
}

// waiting measures a clone that waits for its first call, beside another one, with which
// it shares what it can.
func (m *machineBench) waiting(ctx context.Context) error {
	var clone *vm.Machine
	for range 2 {
		var err error
		if clone, err = vm.Start(m.folder, m.cache, ""); err != nil {
			return err
		}
		defer clone.Close()
		// As the server does for its stock, for which a clone rehearses its first call.
		var reply frame.Reply
		if err := errors.Join(clone.Ping(), clone.Replies.Read(&reply)); err != nil {
			return err
		}
	}
	rest(ctx, clone.Cmd.Process.Pid)
	before := clone.ProcessorTime()
	time.Sleep(waitTime)
	used := clone.ProcessorTime() - before
	size, err := procfs.OwnMemory(procfs.Tree(clone.Cmd.Process.Pid)...)
	if err != nil {
		return err
	}
	m.result.add(waitRow, 0, used, mebibytes(size), milliseconds(used))
	return nil
}

// copyFile copies a file as the memory of a machine is copied: into a new one, pages that
// are not holes alone.
func copyFile(from, to string) (time.Duration, error) {
	source, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer source.Close()
	target, err := os.Create(to)
	if err != nil {
		return 0, err
	}
	defer target.Close()
	buffer := make([]byte, 1<<20)
	began := time.Now()
	for end := int64(0); ; {
		begin, err := unix.Seek(int(source.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // a hole up to the end
			return time.Since(began), nil
		}
		if err == nil {
			end, err = unix.Seek(int(source.Fd()), begin, unix.SEEK_HOLE)
		}
		if err != nil {
			return 0, err
		}
		for at := begin; at < end; {
			n, err := source.ReadAt(buffer[:min(int64(len(buffer)), end-at)], at)
			if n > 0 {
				_, err = target.WriteAt(buffer[:n], at)
			}
			if err != nil && err != io.EOF {
				return 0, err
			}
			at += int64(n)
		}
	}
}

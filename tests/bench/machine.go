package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// machine describes the machine that the figures were measured on, and the
// versions of the programs.
type machine struct {
	Date     string            `json:"date"` // UTC
	Cores    int               `json:"cores"`
	CPU      string            `json:"cpu"`
	Memory   string            `json:"memory"`
	Kernel   string            `json:"kernel"`
	Load     string            `json:"load"` // before the first call: the average of one minute
	Versions map[string]string `json:"versions"`
}

// thisMachine asks the kernel and the programs.
func (b *bench) thisMachine(ctx context.Context) machine {
	m := machine{
		Date:     time.Now().UTC().Format(time.DateOnly),
		Cores:    runtime.NumCPU(),
		CPU:      field("/proc/cpuinfo", "model name"),
		Memory:   field("/proc/meminfo", "MemTotal"),
		Versions: map[string]string{"go": runtime.Version()},
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(text), " ")
	}
	version := func(name string, argv ...string) {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.WaitDelay = time.Second
		if out, err := cmd.CombinedOutput(); err == nil {
			line, _, _ := strings.Cut(string(out), "\n")
			m.Versions[name] = strings.TrimSpace(line)
		}
	}
	for language, a := range b.found {
		version(language, a.interpreter, "--version")
		version("bubblewrap", a.bubblewrap, "--version")
	}
	if !b.short {
		version("runsc", "runsc", "--version")
		version("crun", "crun", "--version")
		version("podman", "podman", "--version")
		version("srt", b.peers+"/node_modules/.bin/srt", "--version")
	}
	return m
}

// field returns the first value of a name in a file of "name: value" lines.
func field(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

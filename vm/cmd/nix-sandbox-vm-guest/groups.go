//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
)

const cgroups = "/sys/fs/cgroup"

// groups are the control groups of a machine: everything of the sandbox is in one,
// and in it the agent and its jail are apart from the code.
type groups struct {
	sandbox string
	agent   *os.File
	code    *os.File
	frozen  *os.File // cgroup.freeze of all
}

// Additional memory and processes of the jail and its agent, beside the code's.
const (
	ownMemory = 64 << 20 // bytes
	ownTasks  = 64
)

// makeGroups makes the control groups. That of the code has exactly its limits: the
// kernel enforces them at once, however busy the machine is, and the agent reads there
// that it did. The agent gets the processor before the code whenever it wants it.
func makeGroups(spec protocol.Spec) (*groups, error) {
	g := &groups{sandbox: filepath.Join(cgroups, "sandbox")}
	agent, code := filepath.Join(g.sandbox, "agent"), filepath.Join(g.sandbox, "code")
	const controllers = "+cpu +memory +pids"
	for _, parent := range []string{cgroups, g.sandbox} {
		if parent != cgroups {
			if err := os.Mkdir(parent, 0o755); err != nil {
				return nil, err
			}
		}
		if err := set(parent, "cgroup.subtree_control", controllers); err != nil {
			return nil, err
		}
	}
	for _, folder := range []string{agent, code} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return nil, err
		}
	}
	for _, s := range []struct{ folder, file, value string }{
		{g.sandbox, "memory.max", strconv.FormatInt(spec.MemoryMB<<20+ownMemory, 10)},
		{g.sandbox, "pids.max", strconv.Itoa(spec.PIDs + ownTasks)},
		{agent, "cpu.weight", "10000"},
		{code, "cpu.weight", "100"},
		{code, "memory.max", strconv.FormatInt(spec.MemoryMB<<20, 10)},
		{code, "memory.oom.group", "1"},
		{code, "pids.max", strconv.Itoa(spec.PIDs)},
	} {
		if err := set(s.folder, s.file, s.value); err != nil {
			return nil, err
		}
	}
	// The agent moves its children from its own group into the code's.
	for _, folder := range []string{g.sandbox, agent, code} {
		if err := os.Chown(filepath.Join(folder, "cgroup.procs"), protocol.User, protocol.User); err != nil {
			return nil, err
		}
	}
	var err error
	if g.agent, err = os.Open(agent); err != nil {
		return nil, err
	}
	if g.code, err = os.Open(code); err != nil {
		return nil, err
	}
	g.frozen, err = os.OpenFile(filepath.Join(g.sandbox, "cgroup.freeze"), os.O_WRONLY, 0)
	return g, err
}

func set(folder, file, value string) error {
	if err := os.WriteFile(filepath.Join(folder, file), []byte(value), 0); err != nil {
		return fmt.Errorf("setting %s of the control group %s to %s: %w", file, folder, value, err)
	}
	return nil
}

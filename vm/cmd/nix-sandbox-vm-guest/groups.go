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
}

// What a jail and its agent need on top of what the code may have.
const (
	ownMemory = 32 << 20 // bytes
	ownTasks  = 32
)

// makeGroups makes the control groups. The limit keeper of the agent acts before
// these limits, which end what it misses.
func makeGroups(spec protocol.Spec) (*groups, error) {
	g := &groups{sandbox: filepath.Join(cgroups, "sandbox")}
	agent := filepath.Join(g.sandbox, "agent")
	for _, folder := range []string{g.sandbox, agent} {
		const controllers = "+cpu +memory +pids"
		if err := set(filepath.Dir(folder), "cgroup.subtree_control", controllers); err != nil {
			return nil, err
		}
		if err := os.Mkdir(folder, 0o755); err != nil {
			return nil, err
		}
	}
	for file, value := range map[string]string{
		"memory.max":       strconv.FormatInt(spec.MemoryMB<<20+ownMemory, 10),
		"memory.oom.group": "0",
		"pids.max":         strconv.Itoa(spec.PIDs + ownTasks),
	} {
		if err := set(g.sandbox, file, value); err != nil {
			return nil, err
		}
	}
	var err error
	g.agent, err = os.Open(agent)
	return g, err
}

func set(folder, file, value string) error {
	if err := os.WriteFile(filepath.Join(folder, file), []byte(value), 0); err != nil {
		return fmt.Errorf("setting %s of the control group %s to %s: %w", file, folder, value, err)
	}
	return nil
}

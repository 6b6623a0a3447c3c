package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
)

// The largest limits: 16 TiB, and what Linux can number.
const (
	mostMemory = 16 << 20 // MiB
	mostTasks  = 4 << 20
)

// parse takes the limits off the front of the arguments, and the folder of
// the project's throw-away layer, empty where there is none. 0 is no limit.
func parse(args []string) (limits limitkeeper.Limits, layer string, rest []string, err error) {
	flags := flag.NewFlagSet("limits", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	memory := flags.Int64("memory-mb", 0, "")
	flags.IntVar(&limits.Tasks, "pids", 0, "")
	flags.StringVar(&layer, "layer", "", "")
	switch err := flags.Parse(args); {
	case err != nil:
		return limits, "", nil, err
	case *memory < 0 || *memory > mostMemory:
		return limits, "", nil, fmt.Errorf("--memory-mb is %d, it must be from 0 to %d", *memory, mostMemory)
	case limits.Tasks < 0 || limits.Tasks > mostTasks:
		return limits, "", nil, fmt.Errorf("--pids is %d, it must be from 0 to %d", limits.Tasks, mostTasks)
	}
	limits.Memory = *memory << 20
	return limits, layer, flags.Args(), nil
}

// limiter is this program as one that becomes a command under limits. Set
// from outside they would come after the command's first steps.
func limiter(limits limitkeeper.Limits) ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the agent's own program: %w", err)
	}
	return []string{
		program, "exec",
		"--memory-mb", strconv.FormatInt(limits.Memory>>20, 10),
		"--pids", strconv.Itoa(limits.Tasks), "--",
	}, nil
}

// become replaces this program by a command, whose first word is its path.
func become(limits limitkeeper.Limits, words []string) error {
	if err := limitkeeper.Apply(0, limitkeeper.Rlimits(limits)); err != nil {
		return err
	}
	return fmt.Errorf("start %s: %w", words[0], unix.Exec(words[0], words, os.Environ()))
}

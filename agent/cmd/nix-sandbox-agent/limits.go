package main

import (
	"errors"
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

// options are what stands before the interpreter's command line.
type options struct {
	limits limitkeeper.Limits // 0 is no limit
	layer  string             // the folder of the project's overlay; empty where there is none
	driver string             // the folder of the interpreter's driver; empty where there is none
	pipe   bool               // the command reads its code from stdin
}

// parse takes the options off the front of the arguments.
func parse(args []string) (o options, rest []string, err error) {
	flags := flag.NewFlagSet("nix-sandbox-agent", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	memory := flags.Int64("memory-mb", 0, "")
	flags.IntVar(&o.limits.Tasks, "pids", 0, "")
	flags.StringVar(&o.layer, "layer", "", "")
	flags.StringVar(&o.driver, "driver", "", "")
	flags.BoolVar(&o.pipe, "pipe", false, "")
	switch err := flags.Parse(args); {
	case err != nil:
		return options{}, nil, err
	case *memory < 0 || *memory > mostMemory:
		return options{}, nil, fmt.Errorf("--memory-mb is %d, it must be from 0 to %d", *memory, mostMemory)
	case o.limits.Tasks < 0 || o.limits.Tasks > mostTasks:
		return options{}, nil, fmt.Errorf("--pids is %d, it must be from 0 to %d", o.limits.Tasks, mostTasks)
	case o.driver != "" && o.pipe:
		return options{}, nil, errors.New("--pipe is for a command without a driver: leave out one of --driver and --pipe")
	}
	o.limits.Memory = *memory << 20
	return o, flags.Args(), nil
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

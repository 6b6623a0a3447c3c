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

// options are the arguments before the interpreter's command line.
type options struct {
	limits limitkeeper.Limits // 0 is no limit
	group  int                // the descriptor of the code's control group, or 0
	layer  string             // the folder of the project's overlay, or empty
	asks   bool               // code may ask the server
	driver string             // the folder of the interpreter's driver, or empty
	pipe   bool               // the command reads its code from stdin
}

// parse takes the options off the front of the arguments, which the build and the launcher have
// written.
func parse(args []string) (o options, rest []string, err error) {
	flags := flag.NewFlagSet("nix-sandbox-agent", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	memory := flags.Int64("memory-mb", 0, "")
	flags.IntVar(&o.limits.Tasks, "pids", 0, "")
	flags.IntVar(&o.group, "group", 0, "")
	flags.StringVar(&o.layer, "layer", "", "")
	flags.BoolVar(&o.asks, "asks", false, "")
	flags.StringVar(&o.driver, "driver", "", "")
	flags.BoolVar(&o.pipe, "pipe", false, "")
	err = flags.Parse(args)
	o.limits.Memory = *memory << 20
	return o, flags.Args(), err
}

// limiter returns the command line that starts a command under limits: this program with
// exec. Limits set by the agent would apply only after the command's first steps.
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

// execLimited replaces this program by a command. args[0] is its path.
func execLimited(limits limitkeeper.Limits, args []string) error {
	if err := limitkeeper.Apply(0, limitkeeper.Rlimits(limits)); err != nil {
		return err
	}
	return fmt.Errorf("start %s: %w", args[0], unix.Exec(args[0], args, os.Environ()))
}

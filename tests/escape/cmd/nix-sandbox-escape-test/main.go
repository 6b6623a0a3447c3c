// Command nix-sandbox-escape-test tries to get out of built sandboxes and reports,
// for each attempt, whether the sandbox contained it. It is a separate program so
// that the MCP server contains no attacks.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/escape"
)

const program = "nix-sandbox-escape-test"

// version is set when the program is linked.
var version = "unknown"

// Exit statuses. The status is 0 if every sandbox contained every attempt.
const (
	statusFailed     = 1  // an attempt got out or proved nothing, or the suite could not run
	statusMisused    = 2  // the command line is wrong
	statusImpossible = 77 // no sandbox starts on this machine, so nothing was tried
)

const usage = `usage: nix-sandbox-escape-test [OPTION]... ARTIFACT...

Tries to get out of each sandbox in some 350 ways. ARTIFACT is a folder that
mkSandbox built: the folder that holds metadata.json and bin/run. The program
prints a line for each attempt, and then a line of totals.

Each attempt is also made outside of the sandbox, where it must succeed. That
takes the sandbox's interpreter (python3, bash or node) on the PATH.

  --match PATTERNS   make only the attempts with such names: files/*,network/*.sh
  --skip TAGS        leave out the attempts with these tags: limits,seccomp
  --all              also make the attempts that SECURITY.md does not promise to stop
  --no-controls      do not show that each attempt succeeds outside of a sandbox
  --version          print the version

An attempt that succeeds by a device that the environment names (devices) is
reported as OPEN, and does not count as one that got out.

The exit status is 1 if an attempt got out or proved nothing, and 77 if no
sandbox starts on this machine.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

func run(ctx context.Context, args []string, out, log io.Writer) int {
	var options escape.Options
	flags := flag.NewFlagSet(program, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	match := flags.String("match", "", "")
	skip := flags.String("skip", "", "")
	all := flags.Bool("all", false, "")
	flags.BoolVar(&options.NoControls, "no-controls", false, "")
	showVersion := flags.Bool("version", false, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		return 0
	case err == nil && *showVersion:
		fmt.Fprintln(out, program, version)
		return 0
	case err == nil && flags.NArg() == 0:
		err = errors.New("no artifact was named")
	}
	if err != nil {
		return fail(log, statusMisused, err, "see "+program+" --help")
	}
	options.Match, options.Skip = list(*match), list(*skip)
	if !*all {
		options.Skip = append(options.Skip, escape.Unpromised()...)
	}
	options.Each = func(result escape.Result) { fmt.Fprintln(out, result) }

	// The server starts sandboxes in control groups too, where it can make some.
	groups, err := cgroup.Find(ctx, cgroup.System)
	if err != nil {
		fmt.Fprintln(log, program+": no control groups:", err)
	}
	options.Groups = groups

	status := 0
	for _, folder := range flags.Args() {
		missing, err := checkMachine(ctx, folder)
		if err != nil {
			return fail(log, statusFailed, err, "name the folder of an artifact, and build it again if it is one")
		}
		if missing != nil {
			return fail(log, statusImpossible, errors.New(missing.Found), missing.Fix)
		}
		report, err := escape.Run(ctx, folder, options)
		if err != nil {
			return fail(log, statusFailed, err, "")
		}
		fmt.Fprintln(out, report)
		if !report.OK() {
			status = statusFailed
		}
	}
	return status
}

// finding is what bin/check prints about one thing that a sandbox needs of the
// machine.
type finding struct {
	OK, Needed bool
	Found, Fix string
}

// maxFindings bounds what is read of bin/check, in bytes.
const maxFindings = 64 << 10

// checkMachine asks an artifact what it needs of this machine, and returns the first
// thing that is missing and without which no sandbox starts.
func checkMachine(ctx context.Context, folder string) (*finding, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(folder, "bin", "check"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("check what the sandbox needs: %w", err)
	}
	var report struct{ Findings []finding }
	err = json.NewDecoder(io.LimitReader(out, maxFindings)).Decode(&report)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return nil, fmt.Errorf("%s: %w", cmd.Path, err)
	}
	for _, f := range report.Findings {
		if f.Needed && !f.OK {
			return &f, nil
		}
	}
	return nil, nil
}

// list splits a value of several words with commas between them.
func list(text string) []string {
	return strings.FieldsFunc(text, func(char rune) bool { return char == ',' })
}

// fail prints an error and its hint, if it has one, and returns the status.
func fail(log io.Writer, status int, err error, hint string) int {
	fmt.Fprintf(log, "%s: error: %v\n", program, err)
	if hint != "" {
		fmt.Fprintf(log, "%s: hint: %s\n", program, hint)
	}
	return status
}

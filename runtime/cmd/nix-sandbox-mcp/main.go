// Command nix-sandbox-mcp serves the sandboxes that Nix built over MCP, and
// lets a person look into them.
//
// It promises to say in one sentence what went wrong and in another what to
// do, to write nothing but messages to its standard output while it serves,
// and to leave no process behind however it ends.
//
// A command of it is a file of this folder and an entry in [commands].
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// program is what this program is called.
const program = "nix-sandbox-mcp"

// Exit statuses of this program's own. That of code that ran is the code's.
const (
	failed  = 1   // what was asked for could not be done
	misused = 2   // the command line is wrong
	tooLong = 124 // code was stopped after its time, as timeout(1) says it
)

// commands are what may follow the program's name, in the order of the help.
func commands() []command {
	return []command{
		listCommand(),
		runCommand(),
		shellCommand(),
		doctorCommand(),
		escapeCommand(),
		configCommand(),
		clientCommand(),
		completionCommand(),
		manualCommand(),
		help(),
	}
}

func main() {
	os.Exit(run(os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}))
}

// streams are the standard ones.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run is the program; it returns the exit status.
func run(args []string, streams streams) int {
	status, err := dispatch(args, streams)
	if err != nil {
		return fail(streams.err, err)
	}
	return status
}

// dispatch runs the command that the arguments name.
func dispatch(args []string, streams streams) (int, error) {
	chosen := server()
	if len(args) > 0 && len(args[0]) > 0 && args[0][0] != '-' {
		var err error
		if chosen, err = find(args[0]); err != nil {
			return 0, err
		}
		args = args[1:]
	}
	flags, run := chosen.flags()
	words, err := parse(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		chosen.writeHelp(streams.out)
		return 0, nil
	case err != nil:
		return 0, &misuse{err.Error(), "see " + chosen.words() + " --help"}
	}
	return run(streams, words)
}

// find returns the command of a name.
func find(name string) (command, error) {
	for _, command := range commands() {
		if command.name == name {
			return command, nil
		}
	}
	return command{}, &misuse{fmt.Sprintf("unknown command %q", name), seeHelp}
}

// seeHelp is the hint where the command line is wrong.
const seeHelp = "see " + program + " --help"

// misuse is a mistake in the command line.
type misuse struct{ problem, hint string }

func (e *misuse) Error() string { return e.problem }

// ending is an error with an exit status of its own.
type ending struct {
	status        int
	problem, hint string
}

func (e *ending) Error() string { return e.problem }

// fail tells the operator what went wrong and returns the exit status.
func fail(log io.Writer, err error) int {
	status, hint := failed, ""
	var wrong *config.Error
	var line *misuse
	var end *ending
	switch {
	case errors.As(err, &end):
		status, hint = end.status, end.hint
	case errors.As(err, &line):
		status, hint = misused, line.hint
	case errors.As(err, &wrong):
		hint = wrong.Hint
	}
	// What Nix said of a flake stands in some of them.
	log = visible(log)
	fmt.Fprintf(log, "%s: error: %v\n", program, err)
	if hint != "" {
		fmt.Fprintf(log, "%s: hint: %s\n", program, hint)
	}
	return status
}

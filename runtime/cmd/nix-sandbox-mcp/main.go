// Command nix-sandbox-mcp serves the sandboxes that Nix built over MCP, and
// lets a user list, run and examine them.
//
// It promises to say in one sentence what went wrong and in another what to
// do, to write nothing but messages to its standard output while it serves,
// and to leave no process behind however it ends.
//
// Each command is a file of this folder and a line of [rootCommand]. Help,
// completions and the manual page are made from these commands.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// program is the name of this program.
const program = "nix-sandbox-mcp"

// Exit statuses of this program's own. Otherwise the exit status is that of
// the code that ran.
const (
	failed  = 1   // what was asked for could not be done
	misused = 2   // the command line is wrong
	tooLong = 124 // the code exceeded its time limit, as timeout(1) reports it
)

type streams struct {
	in       io.Reader
	out, err io.Writer
}

func main() {
	std := streams{os.Stdin, os.Stdout, os.Stderr}
	root := rootCommand(std)
	root.SetArgs(os.Args[1:])
	os.Exit(fail(std.err, root.Execute()))
}

// rootCommand returns the program's command, with all others below it.
func rootCommand(std streams) *cobra.Command {
	cobra.EnableCommandSorting = false
	root := programCommand(std)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetOut(std.out)
	root.SetErr(std.err)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		serveCommand(std),
		tokenCommand(std),
		auditCommand(std),
		topCommand(std),
		listCommand(std),
		packagesCommand(std),
		runCommand(std),
		shellCommand(std),
		changesCommand(std),
		sessionsCommand(std),
		doctorCommand(std),
		configCommand(),
		clientCommand(std),
		manualCommand(std),
	)
	initHelp(root)
	initCompletion(root)
	forEach(root, refuseUnknown)
	return root
}

// forEach calls f with a command and all commands below it.
func forEach(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, child := range cmd.Commands() {
		forEach(child, f)
	}
}

// groupOnly is the annotation of a command that does nothing without one below it.
const groupOnly = "group"

// refuseUnknown has a command with subcommands refuse an argument that is none of
// them, and a call without any if it does nothing itself. cobra would print the
// help and exit with 0.
func refuseUnknown(cmd *cobra.Command) {
	if !cmd.HasSubCommands() {
		return
	}
	cmd.SuggestionsMinimumDistance = suggestWithin
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return nil
	}
	if !cmd.Runnable() {
		cmd.Annotations = map[string]string{groupOnly: ""}
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			return &misuse{cmd.CommandPath() + " needs a command", seeHelp(cmd)}
		}
	}
}

// suggestWithin is how many letters of a mistyped word may be wrong for the
// right one to be suggested.
const suggestWithin = 2

// unknownCommand returns the error for a word that is no command below cmd.
func unknownCommand(cmd *cobra.Command, word string) error {
	hint := seeHelp(cmd)
	if near := cmd.SuggestionsFor(word); len(near) > 0 {
		hint = "write " + cmd.CommandPath() + " " + near[0] + ", or " + hint
	}
	return &misuse{fmt.Sprintf("unknown command %q", word), hint}
}

// unknownFlag returns the error for a flag that cmd does not have.
func unknownFlag(cmd *cobra.Command, flag string) error {
	var names []string
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" { // the hint names it anyway
			names = append(names, f.Name)
		}
	})
	hint := seeHelp(cmd)
	if near := nearest(strings.TrimLeft(flag, "-"), names); near != "" {
		hint = "write --" + near + ", or " + hint
	}
	return &misuse{"unknown flag " + flag, hint}
}

// nearest returns the first of the names that a word could have been meant as,
// or nothing. cobra suggests commands alone, so it is given the names as such.
func nearest(word string, names []string) string {
	commands := &cobra.Command{SuggestionsMinimumDistance: suggestWithin}
	for _, name := range names {
		commands.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	if near := commands.SuggestionsFor(word); len(near) > 0 {
		return near[0]
	}
	return ""
}

// flagError returns this program's error for what package pflag refused.
func flagError(cmd *cobra.Command, err error) error {
	// The word before the flag is the mistake where it should be a command.
	if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 {
		return unknownCommand(cmd, cmd.Flags().Arg(0))
	}
	var unknown *pflag.NotExistError
	var lacking *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		// "-json" is read as four flags of one letter each.
		if letters := unknown.GetSpecifiedShortnames(); letters != "" {
			return unknownFlag(cmd, "-"+letters)
		}
		return unknownFlag(cmd, spell(unknown.GetSpecifiedName()))
	case errors.As(err, &lacking):
		return &misuse{spell(lacking.GetSpecifiedName()) + " needs a value", seeHelp(cmd)}
	case errors.As(err, &invalid):
		return &misuse{fmt.Sprintf("--%s is %q", invalid.GetFlag().Name, invalid.GetValue()), seeHelp(cmd)}
	}
	return &misuse{err.Error(), seeHelp(cmd)}
}

// spell writes a flag as users do.
func spell(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// atMost refuses arguments after the first n.
func atMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return &misuse{fmt.Sprintf("unknown argument %q", args[n]), seeHelp(cmd)}
		}
		return nil
	}
}

// seeHelp is the hint that leads to the help of a command.
func seeHelp(cmd *cobra.Command) string { return "see " + cmd.CommandPath() + " --help" }

// needs refuses fewer than n arguments, and those after them.
func needs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			_, path, _ := strings.Cut(cmd.CommandPath(), " ")
			return &misuse{path + " needs " + what, seeHelp(cmd)}
		}
		return atMost(n)(cmd, args)
	}
}

// misuse is a mistake in the command line.
type misuse struct{ problem, hint string }

func (e *misuse) Error() string { return e.problem }

// ending is an error with an exit status of its own. Nothing is printed where
// it has no problem.
type ending struct {
	status        int
	problem, hint string
}

func (e *ending) Error() string { return e.problem }

// exit returns what a command returns that ends with a status or an error.
func exit(status int, err error) error {
	if err != nil || status == 0 {
		return err
	}
	return &ending{status: status}
}

// fail tells the operator what went wrong and returns the exit status.
func fail(log io.Writer, err error) int {
	if err == nil {
		return 0
	}
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
	if err.Error() == "" {
		return status
	}
	// Some errors quote Nix, and so whatever a flake makes Nix print.
	log = visible(log)
	fmt.Fprintf(log, "%s: error: %v\n", program, err)
	if hint != "" {
		fmt.Fprintf(log, "%s: hint: %s\n", program, hint)
	}
	return status
}

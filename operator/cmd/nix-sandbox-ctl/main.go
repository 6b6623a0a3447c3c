// Command nix-sandbox-ctl has the commands of nix-sandbox-mcp that do not serve: a user lists,
// runs and examines sandboxes with them. The wrapper starts it, and users do not see its name.
//
// Each command is a file of this folder and a line of [rootCommand]. Help, completions and the
// manual page are made from these commands, and so those that serve are here too.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
)

// program is the name that users type.
const program = command.Program

type streams struct {
	in       io.Reader
	out, err io.Writer
}

func main() {
	os.Exit(run(os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}))
}

// run executes a command line, and returns the exit status.
func run(args []string, std streams) int {
	root := rootCommand(std)
	root.SetArgs(args)
	// Some errors quote Nix, and so whatever a flake makes Nix print.
	return command.Report(visible(std.err), root.Execute())
}

// more are the commands of a build with more capabilities, which sets them.
var more []func(streams) *cobra.Command

// rootCommand returns the program's command, with all others below it.
func rootCommand(std streams) *cobra.Command {
	cobra.EnableCommandSorting = false
	root := programCommand(std)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetOut(std.out)
	root.SetErr(std.err)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		serveCommand(),
		tokenCommand(std),
		topCommand(std),
		approveCommand(std),
		listCommand(std),
		packagesCommand(std),
		runCommand(std),
		shellCommand(std),
		changesCommand(std),
		sessionsCommand(std),
		getCommand(std),
		forwardCommand(std),
		doctorCommand(std),
		configCommand(),
		clientCommand(std),
		manualCommand(std),
		versionCommand(std),
	)
	for _, command := range more {
		root.AddCommand(command(std))
	}
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

// groupOnly is the annotation of a command that only groups others.
const groupOnly = "group"

// refuseUnknown has a command with subcommands refuse other arguments, and also no argument if
// the command only groups others. cobra would print the help and exit with 0.
func refuseUnknown(cmd *cobra.Command) {
	if !cmd.HasSubCommands() {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return nil
	}
	if !cmd.Runnable() {
		cmd.Annotations = map[string]string{groupOnly: ""}
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			return command.Misuse(cmd.CommandPath()+" needs a command", seeHelp(cmd))
		}
	}
}

// unknownCommand returns the error for a word that is not a command below cmd.
func unknownCommand(cmd *cobra.Command, word string) error {
	var names []string
	for _, child := range cmd.Commands() {
		names = append(names, child.Name())
	}
	return command.Misuse(fmt.Sprintf("unknown command %q", word), cmp.Or(meant(cmd.CommandPath()+" ", word, names, seeHelp(cmd)), seeHelp(cmd)))
}

// unknownFlag returns the error for a flag that cmd does not have.
func unknownFlag(cmd *cobra.Command, flag string) error {
	var names []string
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" { // the hint names it anyway
			names = append(names, f.Name)
		}
	})
	return command.Misuse("unknown flag "+flag, cmp.Or(meant("--", strings.TrimLeft(flag, "-"), names, seeHelp(cmd)), seeHelp(cmd)))
}

// meant returns a hint at the names that a word could have been meant as, or else at what see
// says, or "" if they are all too different: a name begins with the word, or differs from it in a
// third of its letters and at most two. cobra only suggests commands, so the names become commands.
func meant(prefix, word string, names []string, see string) string {
	commands := &cobra.Command{SuggestionsMinimumDistance: min(2, (len(word)+1)/3)}
	for _, name := range names {
		commands.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	near := commands.SuggestionsFor(word)
	if word == "" || len(near) == 0 {
		return ""
	}
	return "try " + prefix + strings.Join(near, " or "+prefix) + ", or " + see
}

// flagError returns this program's error for an error of package pflag.
func flagError(cmd *cobra.Command, err error) error {
	// If there should be a command before the flag, that word is the mistake.
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
		return command.Misuse(spell(lacking.GetSpecifiedName())+" needs a value", seeHelp(cmd))
	case errors.As(err, &invalid):
		value, usage := pflag.UnquoteUsage(invalid.GetFlag())
		name := "--" + invalid.GetFlag().Name
		return command.Misuse(fmt.Sprintf("%s is %q", name, invalid.GetValue()), fmt.Sprintf("use %s %s: %s", name, value, usage))
	}
	return command.Misuse(err.Error(), seeHelp(cmd))
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
			return command.Misuse(fmt.Sprintf("unknown argument %q", args[n]), seeHelp(cmd))
		}
		return nil
	}
}

// seeHelp is the hint at the help of a command.
func seeHelp(cmd *cobra.Command) string { return "see " + cmd.CommandPath() + " --help" }

// needs requires n arguments, which a text describes.
func needs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			_, path, _ := strings.Cut(cmd.CommandPath(), " ")
			return command.Misuse(path+" needs "+what, seeHelp(cmd))
		}
		return atMost(n)(cmd, args)
	}
}

// exit returns the error of a command that ends with a status or an error.
func exit(status int, err error) error {
	if err != nil {
		return err
	}
	return command.Exit(status)
}

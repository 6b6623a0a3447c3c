// Package program is the program nix-sandbox-ctl. It has the commands of nix-sandbox-mcp that do not serve: a
// user lists, runs and examines sandboxes with them. The wrapper starts it, and users do not see its name.
//
// Each command is a file of this folder, or of a package beside it, and a line of [rootCommand]. Help,
// completions and the manual page are made from these commands, so the commands that serve are here too.
package program

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/clients"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/page"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/sandboxes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/sessions"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
)

// Command returns a command for a program of a server with more parts.
type Command func(cli.Streams) *cobra.Command

// Main executes the command line, and ends the process.
func Main(more ...Command) {
	os.Exit(run(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, more...))
}

// run executes a command line, and returns the exit status.
func run(args []string, std cli.Streams, more ...Command) int {
	root := rootCommand(std, more...)
	root.SetArgs(args)
	// Some errors quote Nix, and so whatever a flake makes Nix print.
	return command.Report(terminal.Visible(std.Err), root.Execute())
}

// rootCommand returns the program's command, with all others below it.
func rootCommand(std cli.Streams, more ...Command) *cobra.Command {
	cobra.EnableCommandSorting = false
	root := programCommand(std)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetFlagErrorFunc(flagError)
	addGroup(root, "Every day:",
		clients.Config(std),
		sandboxes.Run(std),
		sandboxes.Shell(std),
		sandboxes.List(std),
		addEnvCommand(),
		page.Command(std),
		sessions.Approve(std),
		sessions.Changes(std),
		sessions.Exec(std),
		sessions.List(std),
		sessions.Get(std),
		sessions.Forward(std),
		doctorCommand(std),
	)
	operators := []*cobra.Command{
		serveCommand(),
		tokenCommand(std),
		sessions.Top(std),
		sandboxes.Packages(std),
		clients.Hook(std),
		manualCommand(std),
		versionCommand(std),
	}
	for _, command := range more {
		operators = append(operators, command(std))
	}
	const forOperators = "For operators:"
	addGroup(root, forOperators, operators...)
	root.SetHelpCommandGroupID(forOperators)
	root.SetCompletionCommandGroupID(forOperators)
	initHelp(root)
	initCompletion(root)
	forEach(root, refuseUnknown)
	return root
}

// addGroup adds commands under a title of the help.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, cmd := range commands {
		cmd.GroupID = title
	}
	root.AddCommand(commands...)
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
			return command.Misuse(cmd.CommandPath()+" needs a command", cli.SeeHelp(cmd))
		}
	}
}

// unknownCommand returns the error for a word that is not a command below cmd.
func unknownCommand(cmd *cobra.Command, word string) error {
	var names []string
	for _, child := range cmd.Commands() {
		names = append(names, child.Name())
	}
	return command.Misuse(fmt.Sprintf("unknown command %q", word), cmp.Or(cli.Meant(cmd.CommandPath()+" ", word, names, cli.SeeHelp(cmd)), cli.SeeHelp(cmd)))
}

// unknownFlag returns the error for a flag that cmd does not have.
func unknownFlag(cmd *cobra.Command, flag string) error {
	var names []string
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" { // the hint names it anyway
			names = append(names, f.Name)
		}
	})
	return command.Misuse("unknown flag "+flag, cmp.Or(cli.Meant("--", strings.TrimLeft(flag, "-"), names, cli.SeeHelp(cmd)), cli.SeeHelp(cmd)))
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
		return command.Misuse(spell(lacking.GetSpecifiedName())+" needs a value", cli.SeeHelp(cmd))
	case errors.As(err, &invalid):
		value, usage := pflag.UnquoteUsage(invalid.GetFlag())
		name := "--" + invalid.GetFlag().Name
		return command.Misuse(fmt.Sprintf("%s is %q", name, invalid.GetValue()), fmt.Sprintf("use %s %s: %s", name, value, usage))
	}
	return command.Misuse(err.Error(), cli.SeeHelp(cmd))
}

// spell writes a flag as users do.
func spell(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// Package cli is what the commands share: the name of the program, its streams, flags and arguments,
// and the sentences about wrong ones.
package cli

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// Program is the name that users type.
const Program = command.Program

// Streams are a command's input and its outputs.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// AtMost refuses arguments after the first n.
func AtMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return command.Misuse(fmt.Sprintf("unknown argument %q", args[n]), SeeHelp(cmd))
		}
		return nil
	}
}

// Needs requires n arguments, which a text describes.
func Needs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			_, path, _ := strings.Cut(cmd.CommandPath(), " ")
			return command.Misuse(path+" needs "+what, SeeHelp(cmd))
		}
		return AtMost(n)(cmd, args)
	}
}

// SeeHelp is the hint at the help of a command.
func SeeHelp(cmd *cobra.Command) string { return "see " + cmd.CommandPath() + " --help" }

// Meant returns a hint at the names that a word could have been meant as, or else at what see
// says, or "" if they are all too different: a name begins with the word, or differs from it in a
// third of its letters and at most two. cobra only suggests commands, so the names become commands.
func Meant(prefix, word string, names []string, see string) string {
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

// Exit returns the error of a command that ends with a status or an error.
func Exit(status int, err error) error {
	if err != nil {
		return err
	}
	return command.Exit(status)
}

// Self is the absolute path by which this program was started. It does not follow links: a link
// such as result/ stays when the next build replaces its target.
func Self() (string, error) {
	path, err := exec.LookPath(os.Args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("find the path of this program: %w", err)
	}
	return path, nil
}

// ProjectFolder returns the absolute path of the value of --project, or "" if it is not given.
func ProjectFolder(project string) (string, error) {
	folder, err := config.Folder(project)
	if err != nil {
		return "", command.Misuse(fmt.Sprintf("--project is %v", err), "name an existing folder")
	}
	return folder, nil
}

// ProjectFlag adds the flag --project, which takes a folder.
func ProjectFlag(cmd *cobra.Command, project *string, usage string) {
	cmd.Flags().StringVar(project, "project", "", usage)
	if err := cmd.MarkFlagDirname("project"); err != nil {
		panic(err) // the line above has added it
	}
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if cmd.Flags().Changed("project") && *project == "" {
			return command.Misuse("--project is empty", "name an existing folder, or leave --project out")
		}
		return nil
	}
}

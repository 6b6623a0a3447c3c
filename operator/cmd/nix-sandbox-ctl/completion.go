package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// withoutPackage defines the functions of bash-completion that the script for bash calls, for
// shells that have not loaded that package.
const withoutPackage = `declare -F _get_comp_words_by_ref >/dev/null || _get_comp_words_by_ref() {
  words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
}
declare -F _filedir >/dev/null || _filedir() { mapfile -t COMPREPLY < <(compgen "${1:--f}" -- "$cur"); }

`

// initCompletion adds the command completion. Its scripts ask this program for each completion.
func initCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	bash, _, _ := root.Find([]string{"completion", "bash"})
	bash.PreRun = func(cmd *cobra.Command, _ []string) { fmt.Fprint(cmd.OutOrStdout(), withoutPackage) }
}

// completeEnvironment completes the first argument with the environments that are ready, and
// leaves other arguments to the directive.
func completeEnvironment(others cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, others
		}
		_, set, err := config.Survey()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, name := range set.Names() {
			names = append(names, cobra.CompletionWithDesc(name, plain(set.Environments[name].Description)))
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// projectFlag adds the flag --project, which takes a folder.
func projectFlag(cmd *cobra.Command, project *string, usage string) {
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

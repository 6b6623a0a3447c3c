package program

import (
	"fmt"

	"github.com/spf13/cobra"
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

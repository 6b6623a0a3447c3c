package program

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
)

func manualCommand(std cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "manual",
		Short: "Print the manual page, for man -l -",
		Args:  cli.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			writeManual(std.Out, cmd.Root())
			return nil
		},
	}
}

// writeManual writes one manual page of all commands, for man(7). cobra's own generator writes a
// page for each command, and needs three more modules.
func writeManual(w io.Writer, root *cobra.Command) {
	fmt.Fprintf(w, ".TH %s 1 \"\" \"%s %s\" \"User Commands\"\n", strings.ToUpper(cli.Program), cli.Program, command.Version())
	fmt.Fprintf(w, ".SH NAME\n%s \\- %s\n", cli.Program, roff("run a language model's code in sandboxes that Nix built"))
	fmt.Fprintf(w, ".SH SYNOPSIS\n.nf\n\\fB%[1]s \\-\\-stdio\\fR [\\fIFLAG\\fR]...\n\\fB%[1]s\\fR \\fICOMMAND\\fR [\\fIFLAG\\fR]...\n.fi\n", roff(cli.Program))
	fmt.Fprintf(w, ".SH DESCRIPTION\n%s\n", roff(about))
	writeManualFlags(w, root)
	fmt.Fprint(w, ".SH COMMANDS\n")
	forEach(root, func(cmd *cobra.Command) {
		if _, nothing := cmd.Annotations[groupOnly]; cmd == root || nothing || cmd.IsAdditionalHelpTopicCommand() {
			return
		}
		name := strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ")
		_, arguments, _ := strings.Cut(cmd.Use, " ")
		fmt.Fprintf(w, ".SS %s\n", roff(strings.TrimSpace(name+" "+arguments)))
		if cmd.Long == "" {
			fmt.Fprintf(w, "%s.\n", roff(cmd.Short))
		} else {
			fmt.Fprintf(w, ".nf\n%s\n.fi\n", roff(strings.TrimSpace(cmd.Long)))
		}
		writeManualFlags(w, cmd)
	})
	fmt.Fprintf(w, ".SH ENVIRONMENT\n.nf\n%s.fi\n", roff(variables))
	fmt.Fprintf(w, ".SH EXIT STATUS\n.nf\n%s.fi\n", roff(statuses))
}

func writeManualFlags(w io.Writer, cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		name := `\fB` + roff("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			name = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + name
		}
		value, usage := pflag.UnquoteUsage(f)
		if value != "" {
			name += ` \fI` + roff(value) + `\fR`
		}
		fmt.Fprintf(w, ".TP\n%s\n%s\n", name, roff(usage))
	})
}

// roff escapes text so that man(7) takes no line for a request. Empty lines become paragraphs.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		switch {
		case strings.HasPrefix(line, "."), strings.HasPrefix(line, "'"):
			lines[i] = `\&` + line
		case line == "" && i < len(lines)-1:
			lines[i] = ".PP"
		}
	}
	return strings.Join(lines, "\n")
}

package main

import (
	"flag"
	"fmt"
	"io"
	"strings"
)

func manualCommand() command {
	return command{
		name:    "manual",
		summary: "print the manual page, for man -l -",
		define: func(*flag.FlagSet) runner {
			return func(streams streams, args []string) (int, error) {
				if len(args) > 0 {
					return 0, &misuse{fmt.Sprintf("unknown argument %q", args[0]), seeHelp}
				}
				writeManual(streams.out)
				return 0, nil
			}
		},
	}
}

// writeManual writes the manual page in the language of man(7), from the same
// words as the help.
func writeManual(w io.Writer) {
	fmt.Fprintf(w, ".TH %s 1 \"\" \"%s %s\" \"User Commands\"\n", strings.ToUpper(program), program, release())
	fmt.Fprintf(w, ".SH NAME\n%s \\- %s\n", program, roff("run a language model's code in sandboxes that Nix built"))
	fmt.Fprintf(w, ".SH SYNOPSIS\n.nf\n\\fB%[1]s \\-\\-stdio\\fR [\\fIOPTION\\fR]...\n\\fB%[1]s\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR]...\n.fi\n", roff(program))
	fmt.Fprintf(w, ".SH DESCRIPTION\n%s\n", roff(about))
	writeManualOptions(w, server())
	fmt.Fprint(w, ".SH COMMANDS\n")
	for _, c := range commands() {
		fmt.Fprintf(w, ".SS %s\n%s.\n", roff(strings.TrimSpace(c.name+" "+c.args)), roff(sentence(c.summary)))
		if c.details != "" {
			fmt.Fprintf(w, ".PP\n.nf\n%s.fi\n", roff(c.details))
		}
		writeManualOptions(w, c)
	}
	fmt.Fprintf(w, ".SH ENVIRONMENT\n.nf\n%s.fi\n", roff(variables))
	fmt.Fprintf(w, ".SH EXIT STATUS\n.nf\n%s.fi\n", roff(statuses))
}

func writeManualOptions(w io.Writer, c command) {
	for _, o := range c.options() {
		value := ""
		if o.value != "" {
			value = ` \fI` + roff(o.value) + `\fR`
		}
		fmt.Fprintf(w, ".TP\n\\fB%s\\fR%s\n%s\n", roff(o.name), value, roff(sentence(o.about)))
	}
}

// roff writes text so that no word of it is a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "")
}

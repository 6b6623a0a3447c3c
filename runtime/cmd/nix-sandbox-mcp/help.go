package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func help() command {
	return command{
		name:    "help",
		args:    "[COMMAND]",
		summary: "print this, or the help of a command",
		define: func(*flag.FlagSet) runner {
			return func(streams streams, args []string) (int, error) {
				chosen := server()
				switch len(args) {
				case 0:
				case 1:
					var err error
					if chosen, err = find(args[0]); err != nil {
						return 0, err
					}
				default:
					return 0, &misuse{fmt.Sprintf("unknown argument %q", args[1]), seeHelp}
				}
				chosen.writeHelp(streams.out)
				return 0, nil
			}
		},
	}
}

// about is what the program does.
const about = "Serves sandboxes to a language model over MCP, and shows them to you."

// variables are what the environment may set, in the help.
const variables = `PROJECT_DIR                folder to show in every sandbox
PROJECT_MOUNT              where it is shown (/project)
PROJECT_MODE               readonly, or overlay: code may write, and it is thrown away (readonly)
PROJECT_USE_FLAKE          1: the project's devShells.default is an environment
SESSION_IDLE_TIMEOUT       seconds until an unused session ends (300)
SESSION_MAX_LIFETIME       seconds until a session ends (3600)
SESSION_MAX                how many sessions live at once (64)
NIX_SANDBOX_CONFIG         TOML file of environments, in place of the server's own
NIX_SANDBOX_ENVS           flake references of further sandboxes, with commas between them
NIX_SANDBOX_DIR            folders of further sandboxes, with colons between them
NIX_SANDBOX_START_SECONDS  what a sandbox may take to start (10)
NIX_SANDBOX_METADATA       what the server was built with: JSON, or its path
`

// statuses are the exit statuses, in the help.
const statuses = `0    done
1    what was asked for could not be done; the error says why
2    the command line is wrong
124  code was stopped after its time
else that of the code: 128 + N where signal N ended it (137: it crossed a
     limit), 125 where its sandbox did not start
`

// writeHelp writes the help of a command, or that of the program.
func (c command) writeHelp(w io.Writer) {
	if c.name != "" {
		fmt.Fprintf(w, "Usage: %s\n\n%s.\n", strings.Join(strings.Fields(c.words()+" [OPTION]... "+c.args), " "), sentence(c.summary))
		if c.details != "" {
			fmt.Fprintf(w, "\n%s", c.details)
		}
		writeOptions(w, c)
		return
	}
	fmt.Fprintf(w, "Usage: %[1]s --stdio [--log-format text|json]\n       %[1]s COMMAND [OPTION]...\n\n", program)
	fmt.Fprint(w, about, "\n")
	writeOptions(w, c)
	fmt.Fprint(w, "\nCommands:\n")
	writeCommands(w)
	fmt.Fprintf(w, "\nEnvironment variables:\n%s\nExit status:\n%s", indent(variables), indent(statuses))
}

// writeNextSteps is the answer to a person who started the program and wonders.
func writeNextSteps(w io.Writer) {
	fmt.Fprintf(w, "%s %s: sandboxes for a language model, over MCP\n\n", program, release())
	fmt.Fprint(w, "A client starts this server. For a person there is:\n\n")
	writeCommands(w)
	fmt.Fprintf(w, "\nNext: see what there is to run, and give it to your client:\n\n  %[1]s list\n  %[1]s client-config claude-code\n", os.Args[0])
}

// writeCommands writes a line for each command.
func writeCommands(w io.Writer) {
	var rows [][2]string
	for _, c := range commands() {
		rows = append(rows, [2]string{strings.TrimSpace(c.name + " " + c.args), c.summary})
	}
	writeRows(w, rows)
}

// writeOptions writes a line for each option.
func writeOptions(w io.Writer, c command) {
	var rows [][2]string
	for _, o := range c.options() {
		rows = append(rows, [2]string{strings.TrimSpace(o.name + " " + o.value), o.about})
	}
	fmt.Fprint(w, "\nOptions:\n")
	writeRows(w, rows)
}

// writeRows writes two columns.
func writeRows(w io.Writer, rows [][2]string) {
	width := 0
	for _, row := range rows {
		width = max(width, len(row[0]))
	}
	for _, row := range rows {
		fmt.Fprintf(w, "  %-*s  %s\n", width, row[0], row[1])
	}
}

// sentence makes a line begin with a capital letter.
func sentence(text string) string {
	return strings.ToUpper(text[:1]) + text[1:]
}

// indent moves lines to the right.
func indent(lines string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(lines, "\n"), "\n", "\n  ") + "\n"
}

// isTerminal says whether a stream is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

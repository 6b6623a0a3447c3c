// Package clients has the commands that connect MCP clients, and the shells of their agents, to a
// server.
package clients

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// maxClients bounds the file that describes the clients, in bytes.
const maxClients = 1 << 20

// client is a client's entry in nix/lib/clients.nix.
type client struct {
	Add                             *struct{ Get, Remove, Start, Connect []string }
	Format                          string
	Files                           files
	Note, Start, Variables, Connect string
	Trust                           string
	Allow                           *beside
	Shell                           *beside
}

// beside is what another file of a client is to have. Its format is JSON, or that of a file of its own.
type beside struct {
	Files              files
	Text, Format, Note string
}

// files are the paths of a client's file, for all projects of a user and for one.
type files struct{ User, Project string }

// clients returns the entries by name. It returns none without the wrapper, which names the
// file.
func clients() map[string]client {
	all := map[string]client{}
	text, err := bounded.ReadFile(os.Getenv("NIX_SANDBOX_CLIENTS"), maxClients)
	if err == nil && json.Unmarshal(text, &all) != nil {
		clear(all)
	}
	return all
}

// Config is client-config, which prints or installs what a client needs to start or reach a server.
func Config(std cli.Streams) *cobra.Command {
	var project, address string
	var v variables
	var i installation
	known := clients()
	names := slices.Sorted(maps.Keys(known))
	one := strings.Join(names, ", ")
	cmd := &cobra.Command{
		Use:   "client-config NAME",
		Short: "Print or install what a client's configuration needs to start or reach a server",
		Long: `Print what a client's configuration needs to start this server, or with --url to
reach one that serves HTTP. Then the client takes its user's token from the
variable NIX_SANDBOX_TOKEN or asks for it, or you replace TOKEN in the text.

NAME is one of ` + strings.Join(names[:len(names)/2], ", ") + `,
` + strings.Join(names[len(names)/2:], ", ") + `.
Standard output is the text for the client's configuration file. Standard error
names that file.

--install runs the client's own command that adds a server, if it has one (Claude
Code, Codex, Gemini CLI). Otherwise it adds the text to the client's file, if that
is plain JSON, and keeps the old file beside it. It also adds the permission
without which Claude Code asks before each call. --uninstall takes all of it away.

--project here shows the folder in which the client starts the server. It is the
default for claude-code, codex, gemini-cli and opencode, which start one in the
folder in which you work; --project none shows none.

With --shell the client's own shell commands run in the sandbox too, by a hook
(claude-code, codex, gemini-cli, opencode): see docs/agent-shell.md.`,
		Example: "  " + cli.Program + " client-config claude-code --install --shell\n" +
			"  " + cli.Program + " client-config codex --install --project here --overlay --outputs results",
		ValidArgsFunction: cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return command.Misuse("name one client", "use one of "+one)
			}
			c, found := known[args[0]]
			if !found {
				return command.Misuse(fmt.Sprintf("unknown client %q", args[0]), cmp.Or(cli.Meant("", args[0], names, cli.SeeHelp(cmd)), "use one of "+one))
			}
			if err := i.check(args[0], c); err != nil {
				return err
			}
			overHTTP := cmd.Flags().Changed("url")
			// These clients start a server in the folder in which their user works.
			if !cmd.Flags().Changed("project") && c.Shell != nil && !overHTTP {
				project = here
			}
			folder, set, err := v.of(project, i.install && !i.dryRun)
			if err != nil {
				return err
			}
			var s server
			if overHTTP {
				s, err = connectClient(args[0], c, set, address)
			} else {
				s, err = startClient(c, set, i.install && !i.dryRun, terminal.Visible(std.Err))
				s.addHook(args[0], i.allow)
			}
			switch {
			case err != nil:
				return err
			case i.install || i.uninstall:
				i.here = slices.Contains(set, "PROJECT_DIR=.")
				return i.apply(cmd.Context(), std, args[0], c, s, folder)
			}
			printClient(std, args[0], c, s.text)
			if i.shell {
				fmt.Fprintf(std.Err, "%s: and this to %s\n", cli.Program, unexpanded(c.Shell.Files.User))
				fmt.Fprint(std.Out, fill(c.Shell.Text, s.names))
			}
			return nil
		},
	}
	cli.ProjectFlag(cmd, &project, "show a folder to every sandbox: `DIR|here|none`")
	v.addTo(cmd)
	cmd.Flags().StringVar(&address, "url", "", "reach the server at `URL`, such as https://sandbox.example/mcp")
	cmd.Flags().BoolVar(&i.install, "install", false, "add it to the client")
	cmd.Flags().BoolVar(&i.uninstall, "uninstall", false, "take it away from the client")
	cmd.Flags().BoolVar(&i.shell, "shell", false, "have the client's own shell commands run in the sandbox too")
	cmd.Flags().BoolVar(&i.allow, "allow", false, "have the client run these without asking its user")
	cmd.Flags().StringVar(&i.scope, "scope", userScope, "install for all projects, or for the one at --project or here: `user|project`")
	cmd.Flags().BoolVar(&i.dryRun, "dry-run", false, "show what --install would change, and change nothing")
	return cmd
}

// printClient prints a text, and the name of the file that it belongs in.
func printClient(std cli.Streams, name string, c client, text string) {
	where := unexpanded(c.Files.User)
	if c.Note != "" {
		where += " (" + c.Note + ")"
	}
	if c.Files.Project != "" {
		where += ", or to " + c.Files.Project + " in a project"
	}
	fmt.Fprintf(std.Err, "%s: add this to %s\n", cli.Program, where)
	if c.Allow != nil {
		fmt.Fprintf(std.Err, "%s: and to %s, so that it does not ask before each call: %s\n", cli.Program, unexpanded(c.Allow.Files.User), c.Allow.Text)
	}
	fmt.Fprintf(std.Err, "%s: hint: %s client-config %s --install does it\n", cli.Program, cli.Program, name)
	fmt.Fprint(std.Out, text)
}

// server is what a client is told of a server: a text for its file, the words of its command, or
// nil if it has none, and what they name.
type server struct {
	text  string
	words []string
	names map[string]string
}

// connectClient returns how a client reaches a server.
func connectClient(name string, c client, set []string, address string) (s server, err error) {
	at, err := url.Parse(address)
	switch {
	case err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "":
		return s, command.Misuse(fmt.Sprintf("--url is %q", address), "use a URL such as https://sandbox.example/mcp")
	case strings.Trim(at.Path, "/") == "":
		return s, command.Misuse(fmt.Sprintf("--url is %q, which has no path", address), "try "+strings.TrimSuffix(address, "/")+"/mcp, where the server answers, or the path that a proxy has for it")
	case len(set) > 0:
		name, _, _ := strings.Cut(set[0], "=")
		return s, command.Misuse("a server at --url takes no "+name+" from a client", "set it where that server is started, and leave its option out here")
	case c.Connect == "":
		return s, command.Misuse(name+" has no file for servers at a URL", "add the URL in its settings (Connectors), or start the server for it: leave --url out")
	}
	s.names = map[string]string{"URL": address}
	s.text = fill(c.Connect, s.names)
	if c.Add != nil {
		s.words = c.Add.Connect
	}
	return s, nil
}

// startClient returns how a client starts this server. Keep makes a link that keeps the server,
// unless a profile does; otherwise the log gets a warning.
func startClient(c client, set []string, keep bool, log io.Writer) (s server, err error) {
	path, err := cli.Self()
	if err != nil {
		return s, err
	}
	if strings.HasPrefix(path, storeFolder+"/") {
		if path, err = lasting(path, keep, log); err != nil {
			return s, err
		}
	}
	s.names = map[string]string{"COMMAND": path}
	text := c.Start
	if len(set) > 0 {
		text = strings.ReplaceAll(c.Variables, `"@ENV@"`, table(c.Format, set))
	}
	s.text = fill(text, s.names)
	if c.Add == nil {
		return s, nil
	}
	for _, word := range c.Add.Start {
		if word != "@ENV@" {
			s.words = append(s.words, word)
			continue
		}
		for _, one := range set {
			s.words = append(s.words, "--env", one)
		}
	}
	return s, nil
}

// addHook adds the command of a client's hook. Clients run the original command if a hook ends with
// another status than 2, as if the program is gone, if it answers something else, or not in time, and
// some of them also if its standard error is empty. They give it to the user's own shell, whose
// language may not be that of sh.
func (s *server) addHook(name string, allow bool) {
	if s.names["COMMAND"] == "" {
		return
	}
	words := "hook " + name
	if allow {
		words += " --allow"
	}
	s.names["HOOK"] = `sh -c 'answer=$(timeout -s KILL 15 "$0" ` + words + `); case $?$answer in 0"{"*hookSpecificOutput*) printf "%s\n" "$answer"; exit;; 2*) exit 2;; esac; ` +
		`echo "the command was not run: its hook failed" >&2; exit 2' ` + format.ShellQuote(s.names["COMMAND"])
}

// fill replaces the words of a text, and indents it if it is JSON.
func fill(text string, words map[string]string) string {
	for word, value := range words {
		var quoted strings.Builder
		_ = format.JSON(&quoted, value) // to memory
		text = strings.ReplaceAll(text, `"@`+word+`@"`, strings.TrimSpace(quoted.String()))
	}
	var indented bytes.Buffer
	if json.Indent(&indented, []byte(text), "", "  ") != nil {
		return text
	}
	return indented.String() + "\n"
}

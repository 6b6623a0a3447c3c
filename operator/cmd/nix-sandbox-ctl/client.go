package main

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

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// client is a client's entry in nix/lib/clients.nix.
type client struct {
	Add                           *struct{ Get, Remove, Start, Project, Connect []string }
	Format                        string
	Files                         files
	Note, Start, Project, Connect string
	Allow                         *struct {
		Files files
		Text  string
	}
}

// files are the paths of a client's file, for all projects of a user and for one.
type files struct{ User, Project string }

// clients returns the entries by name. It returns none without the wrapper, which names the
// file.
func clients() map[string]client {
	all := map[string]client{}
	text, err := bounded.ReadFile(os.Getenv("NIX_SANDBOX_CLIENTS"), maxMetadata)
	if err == nil && json.Unmarshal(text, &all) != nil {
		clear(all)
	}
	return all
}

func clientCommand(std streams) *cobra.Command {
	var project, address string
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
without which Claude Code asks before each call.`,
		Example: "  " + program + " client-config claude-code --install\n" +
			"  " + program + " client-config codex --install --project . --dry-run",
		ValidArgsFunction: cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return command.Misuse("name one client", "use one of "+one)
			}
			c, found := known[args[0]]
			if !found {
				return command.Misuse(fmt.Sprintf("unknown client %q", args[0]), cmp.Or(meant("", args[0], names, seeHelp(cmd)), "use one of "+one))
			}
			if err := i.check(args[0], c); err != nil {
				return err
			}
			var err error
			if project, err = projectFolder(project); err != nil {
				return err
			}
			var s server
			if cmd.Flags().Changed("url") {
				s, err = connectClient(args[0], c, project, address)
			} else {
				s, err = startClient(c, project, i.install && !i.dryRun, visible(std.err))
			}
			switch {
			case err != nil:
				return err
			case i.install:
				return i.apply(cmd.Context(), std, args[0], c, s, project)
			}
			printClient(std, args[0], c, s.text)
			return nil
		},
	}
	projectFlag(cmd, &project, "show the folder `DIR` to every sandbox")
	cmd.Flags().StringVar(&address, "url", "", "reach the server at `URL`, such as https://sandbox.example/mcp")
	cmd.Flags().BoolVar(&i.install, "install", false, "add it to the client")
	cmd.Flags().StringVar(&i.scope, "scope", userScope, "install for all projects, or for the one at --project or here: `user|project`")
	cmd.Flags().BoolVar(&i.dryRun, "dry-run", false, "show what --install would change, and change nothing")
	return cmd
}

// printClient prints a text, and the name of the file that it belongs in.
func printClient(std streams, name string, c client, text string) {
	where := unexpanded(c.Files.User)
	if c.Note != "" {
		where += " (" + c.Note + ")"
	}
	if c.Files.Project != "" {
		where += ", or to " + c.Files.Project + " in a project"
	}
	fmt.Fprintf(std.err, "%s: add this to %s\n", program, where)
	if c.Allow != nil {
		fmt.Fprintf(std.err, "%s: and to %s, so that it does not ask before each call: %s\n", program, unexpanded(c.Allow.Files.User), c.Allow.Text)
	}
	fmt.Fprintf(std.err, "%s: hint: %s client-config %s --install does it\n", program, program, name)
	fmt.Fprint(std.out, text)
}

// projectFolder returns the absolute path of the value of --project, or "" if it is not given.
func projectFolder(project string) (string, error) {
	folder, err := config.Folder(project)
	if err != nil {
		return "", command.Misuse(fmt.Sprintf("--project is %v", err), "name an existing folder")
	}
	return folder, nil
}

// server is what a client is told of a server: a text for its file, the words of its command, or
// nil if it has none, and what they name.
type server struct {
	text  string
	words []string
	names map[string]string
}

// connectClient returns how a client reaches a server.
func connectClient(name string, c client, project, address string) (s server, err error) {
	at, err := url.Parse(address)
	switch {
	case err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "":
		return s, command.Misuse(fmt.Sprintf("--url is %q", address), "use a URL such as https://sandbox.example/mcp")
	case strings.Trim(at.Path, "/") == "":
		return s, command.Misuse(fmt.Sprintf("--url is %q, which has no path", address), "try "+strings.TrimSuffix(address, "/")+"/mcp, where the server answers, or the path that a proxy has for it")
	case project != "":
		return s, command.Misuse("client-config has both --project and --url", "leave --project out: the server's own variables name its project")
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
func startClient(c client, project string, keep bool, log io.Writer) (s server, err error) {
	path, err := self()
	if err != nil {
		return s, err
	}
	if strings.HasPrefix(path, storeFolder+"/") {
		if path, err = lasting(path, keep, log); err != nil {
			return s, err
		}
	}
	s.names = map[string]string{"COMMAND": path, "DIR": project}
	text := c.Start
	if project != "" {
		text = c.Project
	}
	s.text = fill(text, s.names)
	switch {
	case c.Add == nil:
	case project == "":
		s.words = c.Add.Start
	default:
		s.words = c.Add.Project
	}
	return s, nil
}

// fill replaces the words of a text, and indents it if it is JSON.
func fill(text string, words map[string]string) string {
	for word, value := range words {
		var quoted strings.Builder
		_ = writeJSON(&quoted, value) // to memory
		text = strings.ReplaceAll(text, `"@`+word+`@"`, strings.TrimSpace(quoted.String()))
	}
	var indented bytes.Buffer
	if json.Indent(&indented, []byte(text), "", "  ") != nil {
		return text
	}
	return indented.String() + "\n"
}

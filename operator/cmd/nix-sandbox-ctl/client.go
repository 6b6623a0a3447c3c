package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
)

// client is a client's entry in nix/lib/clients.nix.
type client struct{ Where, Start, Project, Connect string }

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
	known := clients()
	names := slices.Sorted(maps.Keys(known))
	one := strings.Join(names, ", ")
	cmd := &cobra.Command{
		Use:   "client-config NAME",
		Short: "Print what a client's configuration needs to start or reach a server",
		Long: `Print what a client's configuration needs to start this server, or with --url to
reach one that serves HTTP. Then the client takes its user's token from the
variable NIX_SANDBOX_TOKEN or asks for it, or you replace TOKEN in the text.

NAME is one of ` + one + `.
Standard output is the text for the client's configuration file. Standard error
names that file.`,
		ValidArgsFunction: cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return command.Misuse("name one client", "use one of "+one)
			}
			c, found := known[args[0]]
			if !found {
				return command.Misuse(fmt.Sprintf("unknown client %q", args[0]), "use one of "+one)
			}
			text, err := startClient(c, project)
			if cmd.Flags().Changed("url") {
				text, err = connectClient(args[0], c, project, address)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(std.err, "%s: add this to %s\n", program, c.Where)
			_, err = fmt.Fprint(std.out, text)
			return err
		},
	}
	projectFlag(cmd, &project, "show the folder `DIR` to every sandbox")
	cmd.Flags().StringVar(&address, "url", "", "reach the server at `URL`, such as https://sandbox.example/mcp")
	return cmd
}

// connectClient returns the text with which a client reaches a server.
func connectClient(name string, c client, project, address string) (string, error) {
	at, err := url.Parse(address)
	switch {
	case err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "":
		return "", command.Misuse(fmt.Sprintf("--url is %q", address), "use a URL such as https://sandbox.example/mcp")
	case strings.Trim(at.Path, "/") == "":
		return "", command.Misuse(fmt.Sprintf("--url is %q, which has no path", address), "try "+strings.TrimSuffix(address, "/")+"/mcp, where the server answers, or the path that a proxy has for it")
	case project != "":
		return "", command.Misuse("client-config has both --project and --url", "leave --project out: the server's own variables name its project")
	case c.Connect == "":
		return "", command.Misuse(name+" has no file for servers at a URL", "add the URL in its settings (Connectors), or start the server for it: leave --url out")
	}
	return fill(c.Connect, map[string]string{"URL": address}), nil
}

// startClient returns the text with which a client starts this server.
func startClient(c client, project string) (string, error) {
	path, err := self()
	if err != nil {
		return "", err
	}
	if project == "" {
		return fill(c.Start, map[string]string{"COMMAND": path}), nil
	}
	if project, err = filepath.Abs(project); err != nil {
		return "", fmt.Errorf("find the project: %w", err)
	}
	return fill(c.Project, map[string]string{"COMMAND": path, "DIR": project}), nil
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

// self is the absolute path by which this program was started. It does not follow links: a link
// such as result/ stays when the next build replaces its target.
func self() (string, error) {
	path, err := exec.LookPath(os.Args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("find the path of this program: %w", err)
	}
	return path, nil
}

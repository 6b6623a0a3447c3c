package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
)

type client struct {
	name string
	// where names its configuration file, for the user.
	where string
	// write writes the part of that file which starts a server.
	write func(w io.Writer, s entry) error
	// connect writes the part which connects to a server at a URL; nil where the file
	// has none.
	connect func(w io.Writer, url string) error
}

// entry is the description of a server in a client's configuration.
type entry struct {
	Type    string            `json:"type,omitempty"`
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env,omitempty"`
}

// tokenVariable is the variable in which clients find the token of their user.
const tokenVariable = "NIX_SANDBOX_TOKEN"

// serverName is the name of this server in a client's configuration.
const serverName = "sandbox"

// clients are the clients whose configuration file is known.
func clients() []client {
	return []client{
		{"claude-code", ".mcp.json in the project, or the user's by: claude mcp add " + serverName + " -- COMMAND --stdio", inJSON("mcpServers", ""), connection("mcpServers", "http", "${"+tokenVariable+"}")},
		{"claude-desktop", "claude_desktop_config.json (Settings, Developer, Edit Config)", inJSON("mcpServers", ""), nil},
		{"codex", "~/.codex/config.toml", inTOML, connectionInTOML},
		{"cursor", "~/.cursor/mcp.json, or .cursor/mcp.json in the project", inJSON("mcpServers", ""), connection("mcpServers", "", "${env:"+tokenVariable+"}")},
		{"vscode", ".vscode/mcp.json in the project, or the user's by: MCP: Open User Configuration", inJSON("servers", "stdio"), connectionWithInput},
		{"zed", "settings.json (zed: open settings)", inJSON("context_servers", ""), connection("context_servers", "", "TOKEN")},
	}
}

func clientNames() []string {
	var names []string
	for _, c := range clients() {
		names = append(names, c.name)
	}
	return names
}

func clientCommand(std streams) *cobra.Command {
	var project, address string
	cmd := &cobra.Command{
		Use:   "client-config NAME",
		Short: "Print what a client's configuration needs to start or reach a server",
		Long: `Print what a client's configuration needs to start this server, or with --url to
reach one that serves HTTP. Then the client takes its user's token from the
variable ` + tokenVariable + `, or asks for it, or the text has TOKEN in its place.

NAME is one of ` + strings.Join(clientNames(), ", ") + `.
Standard output is the text for the client's configuration file. Standard error
names that file.`,
		ValidArgsFunction: cobra.FixedCompletions(clientNames(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return command.Misuse("name one client", "write one of "+strings.Join(clientNames(), ", "))
			}
			for _, c := range clients() {
				if c.name == args[0] && cmd.Flags().Changed("url") {
					return connectClient(c, project, address, std)
				}
				if c.name == args[0] {
					return writeClient(c, project, std)
				}
			}
			return command.Misuse(fmt.Sprintf("unknown client %q", args[0]), "write one of "+strings.Join(clientNames(), ", "))
		},
	}
	projectFlag(cmd, &project, "show the folder `DIR` to every sandbox")
	cmd.Flags().StringVar(&address, "url", "", "reach the server at `URL`, such as https://sandbox.example/mcp")
	return cmd
}

// connectClient writes what a client needs to reach a server.
func connectClient(c client, project, address string, streams streams) error {
	at, err := url.Parse(address)
	switch {
	case err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "":
		return command.Misuse(fmt.Sprintf("--url is %q", address), "write a URL such as https://sandbox.example/mcp")
	case strings.Trim(at.Path, "/") == "":
		return command.Misuse(fmt.Sprintf("--url is %q, which has no path", address), "write "+strings.TrimSuffix(address, "/")+"/mcp"+", where the server answers, or the path that a proxy has for it")
	case project != "":
		return command.Misuse("client-config has both --project and --url", "leave --project out: the server's own variables name its project")
	case c.connect == nil:
		return command.Misuse(c.name+" has no file for servers at a URL", "add the URL in its settings (Connectors), or start the server for it: leave --url out")
	}
	fmt.Fprintf(streams.err, "%s: this belongs into %s\n", program, c.where)
	return c.connect(streams.out, address)
}

func writeClient(c client, project string, streams streams) error {
	path, err := self()
	if err != nil {
		return err
	}
	s := entry{Command: path, Args: []string{"--stdio"}}
	if project != "" {
		if project, err = filepath.Abs(project); err != nil {
			return fmt.Errorf("find the project: %w", err)
		}
		s.Env = map[string]string{"PROJECT_DIR": project}
	}
	fmt.Fprintf(streams.err, "%s: this belongs into %s\n", program, c.where)
	return c.write(streams.out, s)
}

// self is the absolute path by which this program was started. It does not
// follow links: a link such as result/ stays when the next build replaces its
// target.
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

// inJSON returns a writer of JSON that puts an entry below a key.
func inJSON(key, transport string) func(io.Writer, entry) error {
	return func(w io.Writer, s entry) error {
		s.Type = transport
		return writeJSON(w, map[string]map[string]entry{key: {serverName: s}})
	}
}

// connection returns a writer of JSON that puts a connection below a key, whose token
// is what this client replaces by one.
func connection(key, transport, token string) func(io.Writer, string) error {
	return func(w io.Writer, url string) error {
		return writeJSON(w, map[string]any{key: map[string]any{serverName: connected{transport, url, map[string]string{"Authorization": "Bearer " + token}}}})
	}
}

// connected is the description of a server that is reached in a client's configuration.
type connected struct {
	Type    string            `json:"type,omitempty"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

// connectionWithInput writes a connection for Visual Studio Code, which asks for the
// token and keeps it.
func connectionWithInput(w io.Writer, url string) error {
	return writeJSON(w, map[string]any{
		"inputs":  []map[string]any{{"type": "promptString", "id": "token", "description": "Token of " + program, "password": true}},
		"servers": map[string]any{serverName: connected{"http", url, map[string]string{"Authorization": "Bearer ${input:token}"}}},
	})
}

// connectionInTOML writes a connection as a table.
func connectionInTOML(w io.Writer, url string) error {
	_, err := fmt.Fprintf(w, "[mcp_servers.%s]\nurl = %q\nbearer_token_env_var = %q\n", serverName, url, tokenVariable)
	return err
}

// writeJSON writes a value as it would be written by hand.
func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// inTOML writes an entry as a table. Strings and arrays of strings are the same
// in JSON and TOML.
func inTOML(w io.Writer, s entry) error {
	quote := func(value any) string {
		text, err := json.Marshal(value)
		if err != nil {
			return "" // strings cannot fail
		}
		return string(text)
	}
	fmt.Fprintf(w, "[mcp_servers.%s]\ncommand = %s\nargs = %s\n", serverName, quote(s.Command), quote(s.Args))
	if len(s.Env) > 0 {
		fmt.Fprintf(w, "env = { PROJECT_DIR = %s }\n", quote(s.Env["PROJECT_DIR"]))
	}
	return nil
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// client is an MCP client.
type client struct {
	name string
	// where names its configuration file, for the user.
	where string
	// write writes the part of that file which starts a server.
	write func(w io.Writer, s entry) error
}

// entry is the description of a server in a client's configuration.
type entry struct {
	Type    string            `json:"type,omitempty"`
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env,omitempty"`
}

// serverName is the name of this server in a client's configuration.
const serverName = "sandbox"

// clients are the clients whose configuration file is known.
func clients() []client {
	return []client{
		{"claude-code", ".mcp.json in the project, or the user's by: claude mcp add " + serverName + " -- COMMAND --stdio", inJSON("mcpServers", "")},
		{"claude-desktop", "claude_desktop_config.json (Settings, Developer, Edit Config)", inJSON("mcpServers", "")},
		{"codex", "~/.codex/config.toml", inTOML},
		{"cursor", "~/.cursor/mcp.json, or .cursor/mcp.json in the project", inJSON("mcpServers", "")},
		{"vscode", ".vscode/mcp.json in the project, or the user's by: MCP: Open User Configuration", inJSON("servers", "stdio")},
		{"zed", "settings.json (zed: open settings)", inJSON("context_servers", "")},
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
	var project string
	cmd := &cobra.Command{
		Use:   "client-config NAME",
		Short: "Print what a client's configuration needs to start this server",
		Long: `Print what a client's configuration needs to start this server.

NAME is one of ` + strings.Join(clientNames(), ", ") + `.
Standard output is the text for the client's configuration file. Standard error
names that file.`,
		ValidArgsFunction: cobra.FixedCompletions(clientNames(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &misuse{"name one client", "write one of " + strings.Join(clientNames(), ", ")}
			}
			for _, c := range clients() {
				if c.name == args[0] {
					return writeClient(c, project, std)
				}
			}
			return &misuse{fmt.Sprintf("unknown client %q", args[0]), "write one of " + strings.Join(clientNames(), ", ")}
		},
	}
	projectFlag(cmd, &project, "show the folder `DIR` to every sandbox")
	return cmd
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
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(map[string]map[string]entry{key: {serverName: s}})
	}
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

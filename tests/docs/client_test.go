package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// keys are the keys under which the clients' configurations list servers.
var keys = map[string]string{
	"claude-code":    "mcpServers",
	"claude-desktop": "mcpServers",
	"cursor":         "mcpServers",
	"vscode":         "servers",
	"zed":            "context_servers",
	"codex":          "mcp_servers",
}

// started is a server in the configuration of a client.
type started struct {
	Type    string            `json:"type"`
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
}

// configured parses the configuration of a client, starts the one server in it
// as the client does, and calls the tool.
func (s *stage) configured(b block) {
	s.t.Helper()
	text := []byte(b.text)
	if b.language == "toml" {
		file := filepath.Join(s.t.TempDir(), "config.toml")
		err := os.WriteFile(file, text, 0o644)
		if err == nil {
			text, err = s.nix("eval", "--impure", "--json", "--expr", fmt.Sprintf("builtins.fromTOML (builtins.readFile %s)", file))
		}
		if err != nil {
			s.fail("%v", err)
			return
		}
	}
	key, known := keys[b.value]
	if !known {
		s.fail("there is no client %q in these tests", b.value)
		return
	}
	var all map[string]json.RawMessage
	var servers map[string]started
	err := json.Unmarshal(text, &all)
	if err == nil {
		err = json.Unmarshal(all[key], &servers)
	}
	if err != nil || len(all) != 1 || len(servers) != 1 {
		s.fail("the configuration does not contain one server under %s: %v", key, err)
		return
	}
	for name, server := range servers {
		if server.Type != "" && server.Type != "stdio" {
			s.fail("the type of %s is %q", name, server.Type)
		}
		s.serves(server, "bash", "echo $((6 * 7))", "42\n")
	}
}

// serves starts a server and has it run code, whose answer must begin with
// want.
func (s *stage) serves(server started, env, code, want string) mcptest.Answer {
	s.t.Helper()
	// The shell finds the command on the PATH of the pages' commands.
	cmd := exec.Command("bash", append([]string{"-c", `exec "$@"`, "client", server.Command}, server.Args...)...)
	cmd.Dir, cmd.Env = s.folder, s.environ
	for name, value := range server.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	c := mcptest.Start(s.t, cmd)
	c.Initialize(mcptest.Newest)
	answer := c.Run(mcptest.Arguments{Env: env, Code: code})
	if answer.IsError || !strings.HasPrefix(answer.Text(), want) {
		s.fail("%v answers %+v", server, answer)
	}
	return answer
}

// mostCommands bounds the number of commands from nothing to a sandbox of one's
// own in a client.
const mostCommands = 6

// newcomer checks the result of the page for newcomers: Claude Code starts a
// server that has their sandbox.
func (s *stage) newcomer(p page) {
	s.t.Helper()
	var commands []string
	for _, b := range p.blocks {
		if b.verb != "run" {
			continue
		}
		for line := range strings.Lines(b.text) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				commands = append(commands, line)
			}
		}
	}
	if len(commands) > mostCommands {
		s.t.Errorf("%d commands, of which %d are allowed:\n%s", len(commands), mostCommands, strings.Join(commands, "\n"))
	}
	if !s.clients {
		return
	}
	text := must.Get(os.ReadFile(filepath.Join(s.home, ".claude.json")))(s.t)
	var config struct{ MCPServers map[string]started }
	must.Do(s.t, json.Unmarshal(text, &config))
	for _, server := range config.MCPServers {
		answer := s.serves(server, "data", plot, "(3, 2)\n")
		if len(answer.Content) != 2 || answer.Content[1].MIMEType != "image/png" {
			s.t.Errorf("no plot came: %+v", answer)
		}
	}
	if found := len(config.MCPServers); found != 1 {
		s.t.Errorf("Claude Code knows %d servers: %s", found, text)
	}
}

const plot = `import pandas as pd, matplotlib.pyplot as plt
frame = pd.DataFrame({"x": [1, 2, 3], "y": [1, 4, 9]})
frame.plot("x", "y")
frame.shape`

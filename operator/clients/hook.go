package clients

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

const (
	// refused is the exit status by which clients do not run a command: all others run it, or what
	// the hook makes of it.
	refused = 2
	// maxHookInput bounds what a client tells of a command, in bytes, and maxHookLine the command
	// that it gets back, which the kernel takes as one argument (MAX_ARG_STRLEN of execve(2)).
	maxHookInput = 4 << 20
	maxHookLine  = 120 << 10
	// hookWithin is less than every client's own patience, after which some run the command.
	hookWithin = 10 * time.Second
)

// hookClient is how one client asks its hook about a command.
type hookClient struct {
	tools []string // that give commands to a POSIX shell
	// answer is what the client reads, with its tool's changed input. If allow is set, the client does
	// not ask its user.
	answer func(input map[string]any, allow bool) any
	// allow says that the client runs a changed command only if it is allowed.
	allow bool
}

// preToolUse is the answer to Claude Code and Codex.
func preToolUse(input map[string]any, allow bool) any {
	answer := map[string]any{"hookEventName": "PreToolUse", "updatedInput": input}
	if allow {
		answer["permissionDecision"], answer["permissionDecisionReason"] = "allow", "it runs in a sandbox"
	}
	return map[string]any{"hookSpecificOutput": answer}
}

var hookClients = map[string]hookClient{
	"claude-code": {tools: []string{"Bash", "Monitor"}, answer: preToolUse},
	"codex":       {tools: []string{"Bash"}, answer: preToolUse, allow: true},
	"gemini-cli": {tools: []string{"run_shell_command"}, answer: func(input map[string]any, allow bool) any {
		answer := map[string]any{"hookSpecificOutput": map[string]any{"hookEventName": "BeforeTool", "tool_input": input}}
		if allow {
			answer["decision"] = "allow"
		}
		return answer
	}},
	// The plugin of client-config asks in this form.
	"opencode": {tools: []string{"bash"}, answer: func(input map[string]any, _ bool) any { return input }},
}

// Hook rewrites a command of an agent's shell, so that it runs in a sandbox.
func Hook(std cli.Streams) *cobra.Command {
	var allow bool
	cmd := &cobra.Command{
		Use:   "hook CLIENT",
		Short: "Have an agent's own shell commands run in a sandbox, as its hook",
		Long: `Read what a client tells its hook about a command, and answer with a command that runs
it in a sandbox. Anything else is refused, with the status 2 and a sentence for the model.
CLIENT is claude-code, codex, gemini-cli or opencode, and client-config CLIENT --install
--shell has it call this.`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.FixedCompletions([]string{"claude-code", "codex", "gemini-cli", "opencode"}, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) (err error) {
			defer func() {
				if problem := recover(); problem != nil {
					err = fmt.Errorf("the hook failed: %v", problem)
				}
				if err != nil {
					err = command.End(refused, "the command was not run: "+err.Error(), "nothing runs outside of the sandbox; tell the user about this")
				}
			}()
			time.AfterFunc(hookWithin, func() {
				fmt.Fprintln(std.Err, "the command was not run: its hook got no input in time")
				os.Exit(refused)
			})
			if len(args) != 1 {
				return errors.New("its hook does not name one client")
			}
			return answerHook(std, args[0], allow)
		},
	}
	cmd.Flags().BoolVar(&allow, "allow", false, "have the client run commands without asking its user")
	return cmd
}

// answerHook answers a client.
func answerHook(std cli.Streams, name string, allow bool) error {
	client, known := hookClients[name]
	if !known {
		return fmt.Errorf("its hook is for %q, which is no known client", name)
	}
	text, err := io.ReadAll(io.LimitReader(std.In, maxHookInput+1))
	var asked struct {
		Session string         `json:"session_id"`
		Tool    string         `json:"tool_name"`
		Input   map[string]any `json:"tool_input"`
	}
	switch {
	case err != nil:
		return fmt.Errorf("its hook cannot read what the client says: %w", err)
	case len(text) > maxHookInput:
		return fmt.Errorf("it has more than %d MiB", maxHookInput>>20)
	}
	if err := json.Unmarshal(text, &asked); err != nil {
		return fmt.Errorf("its hook cannot read what the client says: %w", err)
	}
	if !slices.Contains(client.tools, asked.Tool) {
		return fmt.Errorf("the tool %.40q runs outside of the sandbox: use %s", asked.Tool, client.tools[0])
	}
	line, is := asked.Input["command"].(string)
	switch {
	case !is:
		return errors.New("its hook finds no command in what the client says: the client's version may be a newer one")
	case strings.ContainsRune(line, 0):
		return errors.New("it has a NUL byte")
	}
	path, err := cli.Self()
	if err != nil {
		return err
	}
	words := []string{path, "exec", "--mark", "--session", hookSession(asked.Session), "-c", line}
	for i, word := range words {
		words[i] = format.ShellQuote(word)
	}
	asked.Input["command"] = strings.Join(words, " ")
	if size := len(asked.Input["command"].(string)); size > maxHookLine {
		return fmt.Errorf("it has %d bytes, and %d are possible: write a script, and run that", size, maxHookLine)
	}
	passed(name)
	encoder := json.NewEncoder(std.Out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(client.answer(asked.Input, allow || client.allow))
}

// hookSession is the session of a client's conversation: two conversations do not meet.
func hookSession(id string) string {
	kept := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return -1
	}, id)
	if kept == "" {
		return "shell"
	}
	return "shell-" + kept[:min(len(kept), 36)]
}

// hookMark is the file whose time says when a client's hook was called last, or "".
func hookMark(client string) string {
	folders := config.DeskFolders(os.Getenv)
	if len(folders) == 0 {
		return ""
	}
	return filepath.Join(folders[0], "hook-"+client)
}

// passed notes that a command has passed a client's hook, for doctor.
func passed(client string) {
	if path := hookMark(client); path != "" && os.MkdirAll(filepath.Dir(path), 0o700) == nil {
		_ = os.WriteFile(path, nil, 0o600)
	}
}

// HookFindings says of each client whose hook is installed for this user whether commands pass it: a
// client that does not run its hook runs commands outside.
func HookFindings() (findings []machine.Finding) {
	known := clients()
	for _, name := range slices.Sorted(maps.Keys(hookClients)) {
		shell := known[name].Shell
		if shell == nil {
			continue
		}
		path, err := expanded(shell.Files.User, "")
		if err != nil {
			continue
		}
		text, err := bounded.ReadFile(path, maxClientFile)
		if err != nil || !isHook(string(text), name) {
			continue
		}
		f := machine.Finding{Name: "shell of " + name, OK: true}
		if info, err := os.Stat(hookMark(name)); err == nil {
			f.Found = "a command passed its hook " + format.Age(time.Since(info.ModTime())) + " ago"
		} else {
			f.OK, f.Found = false, "its hook is installed, and no command has passed it since you logged in"
			f.Fix = cmp.Or(shell.Note, "have "+name+" run a command, and look whether the answer ends with [sandbox …]")
		}
		findings = append(findings, f)
	}
	return findings
}

// isHook reports whether a file of a client has its hook.
func isHook(text, client string) bool {
	return strings.Contains(text, " hook "+client) || strings.Contains(text, `["hook", "`+client+`"]`)
}

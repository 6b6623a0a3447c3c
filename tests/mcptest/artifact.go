package mcptest

import (
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/jailtest"
)

// Main is [jailtest.Main].
func Main(m *testing.M) int { return jailtest.Main(m) }

// Artifacts makes a sandbox for each of python, bash and node that this machine
// has, and one of a plain command, cat: see package jailtest. The result is the
// environments of a server's metadata, by name.
func Artifacts(t testing.TB) map[string]map[string]any {
	t.Helper()
	environments := map[string]map[string]any{}
	for name, program := range map[string]string{"python": "python3", "bash": "bash", "node": "node", "cat": "cat"} {
		if !jailtest.Has(program) {
			continue
		}
		fields := map[string]any{
			"schema": 1, "name": name, "backend": "jail", "interpreter_type": name, "closure": "the-closure-of-" + name,
			"timeout_seconds": 30, "description": "Test " + name,
		}
		sandbox, words := jailtest.Sandbox{}, []string{"--pipe", program}
		if name == "cat" {
			fields["interpreter_type"] = "command"
		} else {
			driver, _ := agenttest.Driver(t, name)
			sandbox.Folders, words = []string{driver}, []string{"--driver", driver, program}
			fields["language"] = map[string]any{"sessions": true}
		}
		for field, verb := range map[string]string{"exec": "run", "session_exec": "serve"} {
			sandbox.Args = append([]string{verb}, words...)
			fields[field] = sandbox.Write(t)
		}
		environments[name] = fields
	}
	return environments
}

// Package release checks what a release publishes: that every file and program has the version
// of the file VERSION, and the rules and schemas of the places that read the files.
package release

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

const root = "../.."

// read returns the text of a file of the checkout.
func read(t *testing.T, path string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(filepath.Join(root, path)))(t))
}

// The pattern is that of https://semver.org without prereleases and metadata of builds: no tag
// of theirs starts the workflow.
func TestVersion_IsSemantic(t *testing.T) {
	pattern := regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`)
	if version := undertest.Version(t); !pattern.MatchString(version) {
		t.Errorf("VERSION has %q", version)
	}
}

// Files that cannot read VERSION repeat it.
func TestVersion_OfFiles(t *testing.T) {
	version := undertest.Version(t)
	for path, pattern := range map[string]string{
		"CHANGELOG.md":                               `(?m)^## \[([0-9.]+)\]`,
		"clients/python/pyproject.toml":              `(?m)^version = "(.*)"$`,
		"clients/python/src/nix_sandbox/__init__.py": `(?m)^__version__ = "(.*)"$`,
		"dist/deploy/agent-sandbox/sandbox.yaml":     `image: nix-sandbox-mcp:(\S+)`,
		"docs/deploying.md":                          `nix-sandbox-mcp:([0-9]\S+)`,
		"dist/plugin/.claude-plugin/plugin.json":     `"version": "(.*)"`,
		"dist/deploy/kubernetes.yaml":                `image: nix-sandbox-mcp:(\S+)`,
	} {
		found := regexp.MustCompile(pattern).FindStringSubmatch(read(t, path))
		if found == nil || found[1] != version {
			t.Errorf("%s has %q, VERSION %q", path, found, version)
		}
	}
}

func TestVersion_OfTheServer(t *testing.T) {
	server, version := undertest.Server(t), undertest.Version(t)
	output := func(args ...string) string {
		return string(must.Get(exec.CommandContext(t.Context(), server, args...).Output())(t))
	}
	if line := output("--version"); !strings.HasPrefix(line, "nix-sandbox-mcp "+version) {
		t.Errorf("--version prints %q", line)
	}
	if page := output("manual"); !strings.Contains(page, `"nix-sandbox-mcp `+version+`"`) {
		t.Errorf("the manual begins with %.200q", page)
	}
	share := filepath.Join(filepath.Dir(server), "..", "share")
	if page := must.Get(os.ReadFile(filepath.Join(share, "man/man1/nix-sandbox-mcp.1")))(t); !strings.Contains(string(page), version) {
		t.Errorf("the installed manual begins with %.200q", page)
	}
	var metadata struct{ Version string }
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(share, "nix-sandbox-mcp/metadata.json")))(t), &metadata))
	if metadata.Version != version {
		t.Errorf("the metadata has version %q", metadata.Version)
	}
	client := mcptest.Start(t, exec.Command(server, "--stdio"))
	var began struct {
		ServerInfo struct{ Version string } `json:"serverInfo"`
	}
	must.Do(t, json.Unmarshal(client.Initialize("2025-11-25").Result, &began))
	if began.ServerInfo.Version != version {
		t.Errorf("serverInfo has version %q", began.ServerInfo.Version)
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// A link to a client's file is followed, and one that leads nowhere is not replaced by a file.
func TestInstallation_KeepsLinks(t *testing.T) {
	folder := t.TempDir()
	link, target := filepath.Join(folder, "link.json"), filepath.Join(folder, "target.json")
	must.Do(t, os.Symlink(target, link))
	i := installation{install: true, scope: userScope}
	merge := func() (file, error) {
		return i.merge(files{User: link}, "", `{"mcpServers": {"sandbox": {"command": "nix-sandbox-mcp"}}}`)
	}
	if _, err := merge(); err == nil || !strings.Contains(err.Error(), link+" is a link that cannot be followed") {
		t.Errorf("without its target: %v", err)
	}
	must.Write(t, target, "{}", 0o600)
	if f := must.Get(merge())(t); f.path != must.Get(filepath.EvalSymlinks(target))(t) {
		t.Errorf("the path is %s", f.path)
	}
}

// A variable such as CODEX_HOME may move a client's file out of the project.
func TestExpanded_KeepsAbsolutePaths(t *testing.T) {
	t.Setenv("SOME_HOME", "/elsewhere")
	for path, want := range map[string]string{"${SOME_HOME:-.some}/config": "/elsewhere/config", ".some/config": "/project/.some/config"} {
		if got, err := expanded(path, "/project"); got != want || err != nil {
			t.Errorf("%s is %q, %v, want %q", path, got, err, want)
		}
	}
}

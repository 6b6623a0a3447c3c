package clients

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
		return i.change(beside{Files: files{User: link}, Text: `{"mcpServers": {"sandbox": {"command": "nix-sandbox-mcp"}}}`, Format: "json"}, "")
	}
	if _, err := merge(); err == nil || !strings.Contains(err.Error(), link+" is a link that cannot be followed") {
		t.Errorf("without its target: %v", err)
	}
	must.Write(t, target, "{}", 0o600)
	if f := must.Get(merge())(t); f.path != must.Get(filepath.EvalSymlinks(target))(t) {
		t.Errorf("the path is %s", f.path)
	}
}

// A pipe in the place of a client's file is not waited for.
func TestInstallation_RefusesPipes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.json")
	must.Do(t, syscall.Mkfifo(path, 0o600))
	i := installation{install: true, scope: userScope}
	if _, err := i.change(beside{Files: files{User: path}, Text: `{"mcpServers": {}}`, Format: "json"}, ""); err == nil || !strings.Contains(err.Error(), path+" is no regular file") {
		t.Errorf("a pipe: %v", err)
	}
}

// The file of a user stays the user's if root writes it, and no earlier copy is replaced.
func TestFile_KeepsOwnersAndCopies(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file away")
	}
	folder := t.TempDir()
	must.Do(t, os.Chown(folder, 65534, 65534))
	path := filepath.Join(folder, "sub", "file.json")
	for i := range 3 {
		f := file{path: path, new: []byte{byte('0' + i)}, mode: 0o600}
		if i > 0 {
			f.old = []byte{byte('0' + i - 1)}
		}
		must.Get(f.write())(t)
	}
	all := must.Get(os.ReadDir(filepath.Dir(path)))(t)
	if len(all) != 3 {
		t.Errorf("there are %d files", len(all))
	}
	for _, name := range []string{filepath.Dir(path), path} {
		if owner := must.Get(os.Stat(name))(t).Sys().(*syscall.Stat_t).Uid; owner != 65534 {
			t.Errorf("%s belongs to %d", name, owner)
		}
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

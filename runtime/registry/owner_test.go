package registry

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// An artifact that another user can change is left out, with the reason; the same
// artifact is taken where only this user can.
func TestWith_LeavesOutWhatOthersCanChange(t *testing.T) {
	const metadata = `{"schema":1,"name":"mine","backend":"jail","interpreter_type":"command","interpreter":"x","stdin_mode":"arg",` +
		`"timeout_seconds":1,"ask_seconds":300,"inherit_env":[],"packages_ask":false,"nix":false,"max_timeout_seconds":null,"memory_mb":16,"pids":8,"workspace_mb":1,"output_kb":1,"prewarm":0,"description":"","network":{"mode":"none"},"cpus":null,"closure":"","needs":""}`
	for name, test := range map[string]struct {
		change func(t *testing.T, folder, artifact string)
		want   string // in the reason; empty where it is taken
	}{
		"own":     {func(*testing.T, string, string) {}, ""},
		"group's": {func(t *testing.T, _, artifact string) { must.Do(t, unix.Chmod(artifact, 0o775)) }, ""},
		"private group's": {func(t *testing.T, _, artifact string) {
			chown(t, artifact)
			must.Do(t, os.Chown(artifact, os.Geteuid(), os.Geteuid()))
			must.Do(t, unix.Chmod(artifact, 0o775))
		}, ""},
		"another group's": {func(t *testing.T, _, artifact string) {
			chown(t, artifact)
			must.Do(t, os.Chown(artifact, os.Geteuid(), 4001))
			must.Do(t, unix.Chmod(artifact, 0o775))
		}, "members of group 4001"},
		"folder":         {func(t *testing.T, folder, _ string) { must.Do(t, unix.Chmod(folder, 0o777)) }, "every user"},
		"sticky folder":  {func(t *testing.T, folder, _ string) { must.Do(t, unix.Chmod(folder, 0o1777)) }, "every user"},
		"above it":       {func(t *testing.T, folder, _ string) { must.Do(t, unix.Chmod(filepath.Dir(folder), 0o777)) }, "every user"},
		"sticky above":   {func(t *testing.T, folder, _ string) { must.Do(t, unix.Chmod(filepath.Dir(folder), 0o1777)) }, ""},
		"artifact":       {func(t *testing.T, _, artifact string) { must.Do(t, unix.Chmod(artifact, 0o777)) }, "every user"},
		"program":        {func(t *testing.T, _, artifact string) { must.Do(t, unix.Chmod(artifact+"/bin/run", 0o777)) }, "every user"},
		"another user's": {func(t *testing.T, _, artifact string) { chown(t, artifact) }, "belongs to user 4001"},
		"their program":  {func(t *testing.T, _, artifact string) { chown(t, artifact+"/bin/run") }, "belongs to user 4001"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "above", "sandboxes")
			artifact := filepath.Join(folder, "mine")
			must.Write(t, filepath.Join(artifact, "metadata.json"), metadata, 0o644)
			must.Write(t, filepath.Join(artifact, "bin", "run"), "#!/bin/sh\n", 0o755)
			must.Write(t, filepath.Join(artifact, "bin", "session-run"), "#!/bin/sh\n", 0o755)
			test.change(t, folder, artifact)
			set := must.Get((&Set{}).With(Folders{Folders: []string{folder}}))(t)
			_, there := set.Environments["mine"]
			if test.want == "" {
				if !there {
					t.Errorf("it was left out: %v", set.Broken)
				}
				return
			}
			if there || len(set.Broken) != 1 || !strings.Contains(set.Broken[0].Err.Error(), test.want) {
				t.Errorf("environments %v, broken %v, want %q", set.Environments, set.Broken, test.want)
			}
		})
	}
}

func chown(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of other users")
	}
	must.Do(t, os.Chown(path, 4001, 4001))
}

package framed

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// A workspace that cannot be made is an error with the last words of its program.
func TestWorkspace_SaysWhyThereIsNone(t *testing.T) {
	l := New(silent(), Options{})
	t.Cleanup(func() { l.Close(10 * time.Second) })
	dir := t.TempDir()
	must.Write(t, filepath.Join(dir, workspaceProgram), "#!/bin/sh\necho 'no room for files' >&2\n", 0o755)
	_, err := l.Workspace(t.Context(), sandbox.Spec{Name: "data", Exec: filepath.Join(dir, "session-run")})
	var dead *sandbox.DeadError
	if !errors.As(err, &dead) || dead.Log != "no room for files" {
		t.Errorf("%#v", err)
	}
}

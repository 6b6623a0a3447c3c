package snapshot

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestDraft_IsThereWholeOrNotAtAll(t *testing.T) {
	parent := t.TempDir()
	folder := filepath.Join(parent, "session")
	draft := must.Get(Create(folder))(t)
	must.Do(t, draft.Memory.Truncate(size))
	must.Do(t, fill(draft.Memory, draft.State))
	if _, err := OpenFolder(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before it is committed, error %v", err)
	}
	draft.Close()
	if left := must.Get(os.ReadDir(parent))(t); len(left) != 0 {
		t.Errorf("of one that was not committed, %v is left", left)
	}

	// What a process left that was killed is in nobody's way.
	must.Do(t, os.MkdirAll(folder+partialSuffix, 0o700))
	must.Write(t, filepath.Join(folder+partialSuffix, memoryFile), "old", 0o600)
	draft = must.Get(Create(folder))(t)
	defer draft.Close()
	must.Do(t, draft.Memory.Truncate(size))
	must.Do(t, fill(draft.Memory, draft.State))
	if bytes := must.Get(draft.Bytes())(t); bytes <= 0 || bytes >= size {
		t.Errorf("its files take %d bytes, want less than %d", bytes, size)
	}
	must.Do(t, draft.Commit(Meta{Key: "key", Accelerator: "kvm", Branch: true}))
	saved := must.Get(OpenFolder(folder))(t)
	defer saved.Close()
	memory := must.Get(io.ReadAll(saved.Memory))(t)
	if len(memory) != size || string(memory[4096:4102]) != "memory" || saved.Key != "key" || saved.Accelerator != "kvm" || !saved.Branch {
		t.Errorf("it has %d bytes of memory and %+v", len(memory), saved.Meta)
	}
	second := must.Get(OpenFolder(folder))(t)
	defer second.Close()
	if saved.Again || !second.Again {
		t.Errorf("opened again: %v and %v, want false and true", saved.Again, second.Again)
	}
	if info := must.Get(os.Stat(folder))(t); info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has the mode %v", info.Mode())
	}
	if _, err := Create(folder); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("a second one in the same folder: error %v", err)
	}
}

func TestDraft_NeedsAFolderAroundIt(t *testing.T) {
	if _, err := Create(filepath.Join(t.TempDir(), "none", "session")); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("error %v", err)
	}
}

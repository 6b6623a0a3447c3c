package sessionfiles

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/filetree"
)

// Whatever bytes a sandbox sends, they are refused, or the next sandbox can write them.
func FuzzSave(f *testing.F) {
	m := newMachine(f)
	h := newHistory(f, nil, m.folder)
	must.Do(f, os.WriteFile(m.folder+"/file", []byte("text"), 0o644))
	must.Do(f, os.Link(m.folder+"/file", m.folder+"/second"))
	must.Do(f, os.Symlink("../secret", m.folder+"/link"))
	must.Do(f, h.root.MkdirAll("folder/folder", 0o755))
	h.write("folder/sparse", os.O_CREATE, []byte("piece"), 1<<20)
	archive := must.Get(io.ReadAll(m.copy(nil)(sandbox.All)))(f)
	f.Add(archive)
	f.Add(archive[:len(archive)/2])
	f.Fuzz(func(t *testing.T, archive []byte) {
		if len(archive) == 0 {
			return
		}
		kept := must.Get(Open(store.Options{Folder: t.TempDir(), Limit: 1 << 20, Log: slog.New(slog.DiscardHandler)}))(t)
		files := must.Get(acquire(kept, key))(t)
		defer files.Close()
		head, _ := files.Head()
		if err := files.Save(nil, func(sandbox.Extent) io.Reader { return bytes.NewReader(archive) }); err != nil {
			if head != nil {
				t.Errorf("error %v, and something is kept", err)
			}
			return
		}
		canRestore(t, files)
	})
}

func canRestore(t *testing.T, files *Files) {
	// What is a tree and cannot be written is too large or has too long a path.
	_, _, err := files.Restore(nil, (&workspace.Root{Path: t.TempDir()}).Restore)
	if err != nil && !errors.Is(err, unix.EFBIG) && !errors.Is(err, unix.ENAMETOOLONG) {
		t.Error(err)
	}
}

// Whatever changes a sandbox sends, they are refused and leave what was kept, or can be written.
func FuzzAdd(f *testing.F) {
	m := newMachine(f)
	for i := range 10 {
		must.Do(f, os.MkdirAll(fmt.Sprintf("%s/folder-%d", m.folder, i), 0o755))
		must.Do(f, os.WriteFile(fmt.Sprintf("%s/folder-%d/file", m.folder, i), []byte("text"), 0o644))
	}
	must.Do(f, os.Link(m.folder+"/folder-3/file", m.folder+"/folder-5/link"))
	archive := must.Get(io.ReadAll(m.copy(nil)(sandbox.All)))(f)
	for _, change := range []func() error{
		func() error { return os.RemoveAll(m.folder + "/folder-3") },
		func() error { return os.WriteFile(m.folder+"/folder-4/file", []byte("other"), 0o644) },
		func() error { return os.Symlink("../secret", m.folder+"/folder-0/link") },
	} {
		must.Do(f, change())
		changes := must.Get(io.ReadAll(m.copy(nil)(sandbox.Changes)))(f)
		if !bytes.HasPrefix(changes, []byte(filetree.ChangesMark)) {
			f.Fatalf("%.20q is no archive of changes", changes)
		}
		f.Add(changes)
	}
	f.Fuzz(func(t *testing.T, changes []byte) {
		if len(changes) == 0 {
			return
		}
		kept := must.Get(Open(store.Options{Folder: t.TempDir(), Limit: 1 << 20, Log: slog.New(slog.DiscardHandler)}))(t)
		files := must.Get(acquire(kept, key))(t)
		defer files.Close()
		must.Do(t, files.Save(m, func(sandbox.Extent) io.Reader { return bytes.NewReader(archive) }))
		// In place of the changes that it is asked for, a sandbox may send everything.
		_ = files.Save(m, func(sandbox.Extent) io.Reader { return bytes.NewReader(changes) })
		canRestore(t, files)
	})
}

package sessionfiles

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
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
	archive := must.Get(io.ReadAll(m.copy(nil)(true)))(f)
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
		if err := files.Save(func(bool) io.Reader { return bytes.NewReader(archive) }); err != nil {
			if head != nil {
				t.Errorf("error %v, and something is kept", err)
			}
			return
		}
		from := must.Get(files.Open())(t)
		defer from.Close()
		// What is a tree and cannot be written is too large or has too long a path.
		err := (&workspace.Root{Path: t.TempDir()}).Restore(from)
		if err != nil && !errors.Is(err, unix.EFBIG) && !errors.Is(err, unix.ENAMETOOLONG) {
			t.Error(err)
		}
	})
}

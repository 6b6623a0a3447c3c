package workspace

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// settled waits until the coarse clock has passed what was just changed. Linux 6.13 and later stamp an entry that
// was looked at by the fine clock, and the coarse one can be a tick and a half behind it.
func settled() {
	for was := time.Now().UnixNano(); coarse() <= was; {
		time.Sleep(time.Millisecond)
	}
}

// A record of outputs spares a walk, and no change escapes it.
func TestChanged_SeesEveryChangeAfterARecord(t *testing.T) {
	for name, test := range map[string]struct {
		change func(outputs string) error
		files  int
	}{
		"a new file":       {func(o string) error { return os.WriteFile(o+"/new", nil, 0o600) }, 1},
		"one below":        {func(o string) error { return os.WriteFile(o+"/a/b/new", nil, 0o600) }, 1},
		"written in place": {func(o string) error { return writeAt(o+"/a/b/file", "FILE") }, 1},
		"with its times as before": {func(o string) error {
			info, err := os.Stat(o + "/a/b/file")
			if err == nil {
				err = writeAt(o+"/a/b/file", "FILE")
			}
			if err == nil {
				err = os.Chtimes(o+"/a/b/file", info.ModTime(), info.ModTime())
			}
			return err
		}, 1},
		"another file in its place": {func(o string) error {
			if err := os.WriteFile(o+"/../other", []byte("FILE"), 0o600); err != nil {
				return err
			}
			return os.Rename(o+"/../other", o+"/a/b/file")
		}, 1},
		"another folder in its place": {func(o string) error {
			if err := os.Rename(o+"/a", o+"/../a"); err != nil {
				return err
			}
			if err := os.MkdirAll(o+"/a/b", 0o700); err != nil {
				return err
			}
			return os.WriteFile(o+"/a/b/file", []byte("file"), 0o600)
		}, 1},
		"another outputs": {func(o string) error {
			if err := os.Rename(o, o+"-before"); err != nil {
				return err
			}
			if err := os.Mkdir(o, 0o700); err != nil {
				return err
			}
			return os.WriteFile(o+"/new", nil, 0o600)
		}, 1},
		"a link in its place": {func(o string) error {
			if err := os.Rename(o+"/a", o+"/../a"); err != nil {
				return err
			}
			return os.Symlink("../a", o+"/a")
		}, 0},
		"a file that is gone": {func(o string) error { return os.Remove(o + "/a/b/file") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Root{Path: t.TempDir()}
			outputs := filepath.Join(r.Path, "outputs")
			write(t, outputs+"/a/b/file", "file")
			settled()
			if files := r.Changed(); len(files) != 1 {
				t.Fatalf("at first %v, want one file", files)
			}
			if !r.last.isStill(outputs) {
				t.Fatal("a walk is needed although nothing has changed")
			}
			must.Do(t, test.change(outputs))
			if r.last.isStill(outputs) {
				t.Error("the change is not seen")
			}
			if files := r.Changed(); len(files) != test.files {
				t.Errorf("changed: %v, want %d files", files, test.files)
			}
		})
	}
}

// writeAt writes a file without opening it anew for all of its contents.
func writeAt(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte(text), 0)
	return err
}

// What changes while it is looked at, or in the same tick of the clock, is walked through again.
func TestChanged_TrustsNoRecordOfTheSameTick(t *testing.T) {
	r := &Root{Path: t.TempDir()}
	for i := range 50 {
		write(t, r.Path+"/outputs/file", string(rune('a'+i%26)))
		before := coarse()
		r.Changed()
		if before == coarse() && r.last != nil {
			t.Fatalf("round %d: a record was made in the tick of the write", i)
		}
	}
}

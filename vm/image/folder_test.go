package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/filetree"
)

// folder returns folders of this user, with bounds that they keep. The first is named one, the next two.
func folder(t *testing.T, paths ...string) Folders {
	t.Helper()
	all := Folders{MaxFiles: 100, MaxBytes: 1 << 20}
	for i, path := range paths {
		root := must.Get(os.OpenRoot(path))(t)
		t.Cleanup(func() { root.Close() })
		all.All = append(all.All, Folder{Name: []string{"one", "two"}[i], Root: root, Owner: uint32(os.Geteuid()), Group: uint32(os.Getegid()), User: 1000})
	}
	return all
}

func TestFolder_KeepsWhatCodeMayRead(t *testing.T) {
	host := t.TempDir()
	must.Write(t, filepath.Join(host, "secret"), "of the host", 0o644)
	path := filepath.Join(host, "project")
	must.Write(t, filepath.Join(path, "a/b/file"), "content", 0o640)
	must.Write(t, filepath.Join(path, "closed"), "nobody reads this", 0o200)
	must.Write(t, filepath.Join(path, "shut/file"), "nor this", 0o644)
	must.Do(t, os.Chmod(filepath.Join(path, "shut"), 0o300))
	long := strings.Repeat("é", 100) + "\xff\n"
	must.Write(t, filepath.Join(path, long), "x", 0o755)
	must.Do(t, os.Symlink("../secret", filepath.Join(path, "out")))
	must.Do(t, os.Symlink("..", filepath.Join(path, "up")))
	must.Do(t, unix.Mkfifo(filepath.Join(path, "pipe"), 0o600))
	must.Do(t, unix.Mknod(filepath.Join(path, "socket"), unix.S_IFSOCK|0o600, 0))

	var archive bytes.Buffer
	other := t.TempDir()
	must.Write(t, filepath.Join(other, "data"), "1", 0o600)
	f := folder(t, path, other)
	must.Get(f.WriteTar(&archive))(t)
	got := map[string]string{}
	for r := tar.NewReader(&archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		content := must.Get(io.ReadAll(r))(t)
		if h.Name != "./" && (h.Uid != 1000 || h.Gid != 1000) {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		got[h.Name] = fmt.Sprintf("%c %o %s%s", h.Typeflag, h.Mode, h.Linkname, content)
	}
	want := map[string]string{
		"./": "5 755 ", "one/": "5 755 ", "one/a/": "5 755 ", "one/a/b/": "5 755 ", "one/a/b/file": "0 640 content", "one/closed": "0 200 ", "one/shut/": "5 300 ",
		"one/" + long: "0 755 x", "one/out": "2 777 ../secret", "one/up": "2 777 ..", "one/pipe": "6 600 ", "two/": "5 755 ", "two/data": "0 600 1",
	}
	for name, entry := range want {
		if got[name] != entry {
			t.Errorf("%q is %q, want %q", name, got[name], entry)
		}
	}
	if len(got) != len(want) {
		t.Errorf("the archive has %q", got)
	}
	if bytes.Contains(archive.Bytes(), []byte("of the host")) {
		t.Error("a file outside of the folder is in the archive")
	}
}

// What belongs to others is nobody's, and only what everybody may read is there.
func TestFolder_LeavesOutWhatOthersOwn(t *testing.T) {
	path := t.TempDir()
	must.Write(t, filepath.Join(path, "closed"), "secret", 0o660)
	must.Write(t, filepath.Join(path, "open"), "public", 0o664)
	f := folder(t, path)
	f.All[0].Owner, f.All[0].Group = f.All[0].Owner+1, f.All[0].Group+1
	var archive bytes.Buffer
	must.Get(f.WriteTar(&archive))(t)
	if text := archive.String(); strings.Contains(text, "secret") || !strings.Contains(text, "public") {
		t.Errorf("the archive has %q", text)
	}
	r := tar.NewReader(&archive)
	must.Get(r.Next())(t) // the top
	h := must.Get(r.Next())(t)
	if h.Uid != nobody || h.Gid != nobody {
		t.Errorf("the folder belongs to %d:%d", h.Uid, h.Gid)
	}
}

func TestFolder_IsBounded(t *testing.T) {
	path := t.TempDir()
	for i := range 5 {
		must.Write(t, filepath.Join(path, fmt.Sprint(i)), strings.Repeat("x", 1<<19), 0o644)
	}
	deep := path
	for range 20 {
		deep = filepath.Join(deep, "d")
	}
	must.Do(t, os.MkdirAll(deep, 0o755))
	for want, bound := range map[string]func(*Folders){
		"":                                func(f *Folders) { f.MaxBytes = 5 << 19 },
		"more than 24 files and folders":  func(f *Folders) { f.MaxFiles, f.MaxBytes = 24, 5<<19 },
		"its files have more than 2 MB":   func(f *Folders) { f.MaxBytes = 5<<19 - 1 },
		"it has more than 0 files and fo": func(f *Folders) { f.MaxFiles = 0 },
	} {
		f := folder(t, path)
		bound(&f)
		_, counted := f.Measure()
		_, written := f.WriteTar(io.Discard)
		for name, err := range map[string]error{"counted": counted, "written": written} {
			var large *TooLargeError
			if (err == nil) != (want == "") || err != nil && (!errors.As(err, &large) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: the error is %v, want %q", name, err, want)
			}
		}
	}
}

// A file that has become shorter when it is read does not shift what follows.
func TestZeros_FillWhatIsMissing(t *testing.T) {
	var b bytes.Buffer
	if _, err := io.CopyN(&b, io.MultiReader(strings.NewReader("ab"), filetree.Zeros), 4); err != nil || b.String() != "ab\x00\x00" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// A folder has the digest of an earlier walk, of either kind, until something in it changes.
func TestDigest_TellsChanges(t *testing.T) {
	path := t.TempDir()
	file := filepath.Join(path, "d/file")
	must.Write(t, file, "content", 0o644)
	must.Write(t, filepath.Join(path, "d/other"), "", 0o644)
	must.Do(t, os.Symlink("file", filepath.Join(path, "link")))
	f := folder(t, path)
	known := must.Get(f.WriteTar(io.Discard))(t)
	if known != must.Get(f.Measure())(t) {
		t.Error("a walk that writes nothing has another digest")
	}
	for _, change := range []struct {
		what string
		do   func() error
	}{
		{"a newer file", func() error { return os.Chtimes(file, time.Time{}, time.Unix(1, 0)) }},
		{"a longer file", func() error {
			return errors.Join(os.WriteFile(file, []byte("contents"), 0o644), os.Chtimes(file, time.Time{}, time.Unix(1, 0)))
		}},
		{"a mode", func() error { return os.Chmod(file, 0o600) }},
		{"a name", func() error { return os.Rename(file, filepath.Join(path, "d/renamed")) }},
		{"a file less", func() error { return os.Remove(filepath.Join(path, "d/other")) }},
		{"an empty folder", func() error { return os.Mkdir(filepath.Join(path, "new"), 0o755) }},
		{"a link", func() error {
			return errors.Join(os.Remove(filepath.Join(path, "link")), os.Symlink("other", filepath.Join(path, "link")))
		}},
	} {
		must.Do(t, change.do())
		now := must.Get(f.Measure())(t)
		if now == known {
			t.Errorf("%s changes nothing", change.what)
		}
		known = now
	}
	// What was made and deleted again is no change.
	must.Do(t, errors.Join(os.WriteFile(filepath.Join(path, "d/short"), nil, 0o644), os.Remove(filepath.Join(path, "d/short"))))
	if now := must.Get(f.Measure())(t); now != known {
		t.Error("a file that is gone changes it")
	}
}

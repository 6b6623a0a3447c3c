package workspace

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

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/filetree"
)

// tracked is a workspace with some files that were copied.
type tracked struct {
	*Tracker
	t      *testing.T
	folder string
	log    strings.Builder
}

func track(t *testing.T) *tracked {
	t.Helper()
	folder := t.TempDir()
	w := &tracked{Tracker: &Tracker{Root: Root{Path: folder}}, t: t, folder: folder}
	must.Do(t, os.MkdirAll(filepath.Join(folder, "d", "e"), 0o755))
	for _, name := range []string{"a", "d/b", "d/e/c"} {
		write(t, filepath.Join(folder, name), "text")
	}
	must.Do(t, os.Link(w.path("a"), w.path("again")))
	w.copy()
	return w
}

func (w *tracked) path(name string) string { return filepath.Join(w.folder, name) }

// copy returns a copy of the files; nil if nothing has changed.
func (w *tracked) copy() []byte {
	w.t.Helper()
	copied := must.Get(w.Copy(false, false, func(format string, args ...any) { fmt.Fprintf(&w.log, format, args...) }))(w.t)
	if copied == nil {
		return nil
	}
	defer copied.Close()
	data := must.Get(io.ReadAll(copied))(w.t)
	copied.Done()
	return data
}

func TestTracker_FindsChanges(t *testing.T) {
	for _, test := range []struct {
		does    string
		changes bool
		change  func(w *tracked)
	}{
		{"nothing", false, func(*tracked) {}},
		{"read", false, func(w *tracked) { must.Get(os.ReadFile(w.path("d/b")))(w.t) }},
		{"open and close", false, func(w *tracked) { must.Get(os.OpenFile(w.path("d/b"), os.O_RDWR, 0))(w.t).Close() }},
		{"write as much", true, func(w *tracked) { write(w.t, w.path("d/b"), "TEXT") }},
		{"write as much, and set the time back", true, func(w *tracked) {
			before := must.Get(os.Stat(w.path("d/b")))(w.t)
			write(w.t, w.path("d/b"), "TEXT")
			must.Do(w.t, os.Chtimes(w.path("d/b"), before.ModTime(), before.ModTime()))
		}},
		{"truncate", true, func(w *tracked) { must.Do(w.t, os.Truncate(w.path("d/e/c"), 1)) }},
		{"chmod", true, func(w *tracked) { must.Do(w.t, os.Chmod(w.path("d/b"), 0o600)) }},
		{"create", true, func(w *tracked) { write(w.t, w.path("d/new"), "") }},
		{"delete", true, func(w *tracked) { must.Do(w.t, os.Remove(w.path("d/b"))) }},
		{"rename", true, func(w *tracked) { must.Do(w.t, os.Rename(w.path("d/b"), w.path("d/z"))) }},
		{"symbolic link", true, func(w *tracked) { must.Do(w.t, os.Symlink("/etc", w.path("link"))) }},
		{"another name", true, func(w *tracked) { must.Do(w.t, os.Link(w.path("a"), w.path("third"))) }},
		{"rename a folder", true, func(w *tracked) { must.Do(w.t, os.Rename(w.path("d"), w.path("z"))) }},
		{"delete a folder", true, func(w *tracked) { must.Do(w.t, os.RemoveAll(w.path("d/e"))) }},
	} {
		w := track(t)
		test.change(w)
		if changed := w.copy() != nil; changed != test.changes {
			t.Errorf("%s: changed %v", test.does, changed)
		}
		if w.copy() != nil {
			t.Errorf("%s, and then nothing: changed", test.does)
		}
	}
}

// While a process can write to a file by a mapping that it has, files count as changed,
// because such a write may change no time.
func TestTracker_FindsMappings(t *testing.T) {
	w := track(t)
	var file *os.File
	var memory []byte
	for _, step := range []struct {
		does    string
		changes bool
		change  func()
	}{
		{"open", false, func() { file = must.Get(os.OpenFile(w.path("d/b"), os.O_RDWR, 0))(t) }},
		{"map and read", true, func() {
			memory = must.Get(unix.Mmap(int(file.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
			if memory[0] != 't' {
				t.Error("the mapping is of another file")
			}
		}},
		{"write", true, func() { memory[0] = 'x' }},
		{"write again and close", true, func() {
			memory[1] = 'y'
			must.Do(t, file.Close())
		}},
		{"unmap", true, func() { must.Do(t, unix.Munmap(memory)) }},
		{"nothing", false, func() {}},
	} {
		step.change()
		if changed := w.copy() != nil; changed != step.changes {
			t.Errorf("%s: changed %v", step.does, changed)
		}
	}
}

// A copy that was not read to its end leaves the files changed.
func TestTracker_CopiesAgainAfterAFailure(t *testing.T) {
	w := track(t)
	write(t, w.path("d/b"), "other")
	copied := must.Get(w.Copy(false, false, t.Logf))(t)
	must.Get(copied.Read(make([]byte, 1)))(t)
	must.Do(t, copied.Close())
	if w.copy() == nil {
		t.Error("the files count as copied")
	}
	if full := must.Get(w.Copy(true, false, t.Logf))(t); full == nil {
		t.Error("there is no full copy")
	} else {
		full.Close()
	}
}

// A file that changes at the same moment as it is copied counts as changed, even if the
// change is within a tick of the clock.
func TestTracker_FindsChangesAtTheSameMoment(t *testing.T) {
	w := track(t)
	for i := range 50 {
		write(t, w.path("a"), fmt.Sprintf("%04d", i))
		if w.copy() == nil {
			t.Fatalf("change %d was not found", i)
		}
	}
}

// Sockets, and files without permission, are left out and counted.
func TestTracker_LeavesOut(t *testing.T) {
	w := track(t)
	fd := must.Get(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
	defer unix.Close(fd)
	t.Chdir(w.folder) // the path of a socket has a limit
	must.Do(t, unix.Bind(fd, &unix.SockaddrUnix{Name: "socket"}))
	archive := w.copy()
	if want := `1 files of the workspace cannot be kept, such as "socket"`; w.log.String() != want {
		t.Errorf("log %q, want %q", w.log.String(), want)
	}
	again := Root{Path: t.TempDir()}
	must.Do(t, again.Restore(bytes.NewReader(archive)))
	if names := must.Get(filepath.Glob(again.Path + "/*"))(t); len(names) != 3 {
		t.Errorf("restored %q", names)
	}
}

// A file that was restored has its holes again.
func TestRestore_KeepsHoles(t *testing.T) {
	w := track(t)
	file := must.Get(os.Create(w.path("sparse")))(t)
	must.Get(file.WriteAt([]byte("middle"), 1<<30))(t)
	must.Do(t, file.Truncate(1<<40))
	must.Do(t, file.Close())
	archive := w.copy()
	if len(archive) > 1<<20 {
		t.Errorf("the archive has %d bytes", len(archive))
	}
	again := Root{Path: t.TempDir()}
	must.Do(t, again.Restore(bytes.NewReader(archive)))
	var st unix.Stat_t
	must.Do(t, unix.Stat(again.Path+"/sparse", &st))
	if st.Size != 1<<40 || st.Blocks*512 > 1<<20 {
		t.Errorf("it has %d bytes, and takes %d", st.Size, st.Blocks*512)
	}
	middle := make([]byte, 6)
	file = must.Get(os.Open(again.Path + "/sparse"))(t)
	defer file.Close()
	if must.Get(file.ReadAt(middle, 1<<30))(t); string(middle) != "middle" {
		t.Errorf("it has %q", middle)
	}
}

// Whatever an archive is, and whatever is in the workspace, nothing outside is written.
func FuzzRestore(f *testing.F) {
	var seed bytes.Buffer
	archive := tar.NewWriter(&seed)
	for _, e := range []filetree.Entry{
		{Kind: filetree.Folder, Path: "folder", Mode: 0o500, ModTime: time.Unix(1, 1)},
		{Kind: filetree.File, Path: "folder/file", Mode: 0o400, ModTime: time.Unix(1, 1), Size: 9, Pieces: []filetree.Piece{{Offset: 3, Length: 4}}},
		{Kind: filetree.Symlink, Path: "link", Target: "../secret"},
		{Kind: filetree.Symlink, Path: "out", Target: ".."},
		{Kind: filetree.FIFO, Path: "pipe", Mode: 0o600},
		{Kind: filetree.Link, Path: "second", Target: "folder/file"},
	} {
		must.Do(f, filetree.Write(archive, e))
		must.Get(io.WriteString(archive, strings.Repeat("x", int(e.Data()))))(f)
	}
	f.Add(bytes.Clone(seed.Bytes()))
	must.Do(f, archive.Close())
	f.Add(seed.Bytes())
	f.Fuzz(func(t *testing.T, archive []byte) {
		outside := t.TempDir()
		must.Do(t, os.WriteFile(filepath.Join(outside, "secret"), []byte(secret), 0o600))
		inside := filepath.Join(outside, "workspace")
		must.Do(t, os.MkdirAll(filepath.Join(inside, "outputs"), 0o700))
		must.Do(t, os.Symlink("..", filepath.Join(inside, "out")))
		if err := (&Root{Path: inside}).Restore(bytes.NewReader(archive)); errors.Is(err, unix.EXDEV) {
			t.Errorf("a path led out: %v", err)
		}
		if got := must.Get(os.ReadDir(outside))(t); len(got) != 2 {
			t.Errorf("something is outside of the workspace: %v", got)
		}
		if data := must.Get(os.ReadFile(filepath.Join(outside, "secret")))(t); string(data) != secret {
			t.Error("a file outside of the workspace has changed")
		}
		_ = filepath.WalkDir(inside, func(path string, d os.DirEntry, _ error) error {
			if d.IsDir() {
				_ = os.Chmod(path, 0o700) // so that it can be removed
			}
			return nil
		})
	})
}

// What is restored is what was copied, and counts as copied.
func TestRestore_WritesWhatWasCopied(t *testing.T) {
	w := track(t)
	must.Do(t, os.Chtimes(w.path("d/e"), time.Unix(1, 2), time.Unix(3, 4)))
	must.Do(t, os.Chmod(w.path("d/e"), 0o500))
	again := Tracker{Root: Root{Path: t.TempDir()}}
	must.Do(t, again.Root.Restore(bytes.NewReader(w.copy())))
	must.Do(t, again.Settle())
	describe := func(r *Root) (all []string) {
		must.Do(t, r.scan(func(f found) error {
			data, _ := os.ReadFile(filepath.Join(r.Path, f.path))
			all = append(all, fmt.Sprintf("%s %o %d %d %q", f.path, f.stat.Mode, f.stat.Nlink, f.stat.Mtim.Nano(), data))
			return nil
		}))
		return all
	}
	if diff := cmp.Diff(describe(&w.Root), describe(&again.Root)); diff != "" {
		t.Error(diff)
	}
	if copied := must.Get(again.Copy(false, false, t.Logf))(t); copied != nil {
		t.Error("what was restored counts as changed")
	}
}

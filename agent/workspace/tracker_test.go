package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/filetree"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// tracked is a workspace with some files, of which a copy was made.
type tracked struct {
	*Tracker
	t      *testing.T
	folder string
}

// track makes a workspace. Where watched is false, the kernel tells nothing of it.
func track(t *testing.T, watched bool) *tracked {
	t.Helper()
	folder := t.TempDir()
	w := &tracked{&Tracker{Root: Root{Path: folder}}, t, folder}
	t.Cleanup(w.Close)
	if !watched {
		w.unwatchable = os.ErrInvalid
	}
	must.Do(t, os.MkdirAll(filepath.Join(folder, "d", "e"), 0o755))
	for _, name := range []string{"a", "d/b", "d/e/c"} {
		write(t, filepath.Join(folder, name), "text")
	}
	must.Do(t, os.Link(w.path("a"), w.path("again")))
	w.copy()
	if errors.Is(w.unwatchable, unix.EMFILE) || errors.Is(w.unwatchable, unix.ENOSPC) {
		t.Skipf("this user has as many watches as the kernel allows: %v", w.unwatchable)
	}
	if (w.watcher != nil) != watched {
		t.Fatalf("watched: %v, want %v: %v", w.watcher != nil, watched, w.unwatchable)
	}
	return w
}

func (w *tracked) path(name string) string { return filepath.Join(w.folder, name) }

// copy makes a copy of what has changed and returns the paths of its records, of which
// those that are gone begin with a minus sign.
func (w *tracked) copy() string {
	w.t.Helper()
	must.Do(w.t, w.Begin(false))
	var names []string
	for {
		part, copied, err := w.Next()
		must.Do(w.t, err)
		for r, err := range filetree.Records(part) {
			must.Do(w.t, err)
			switch r.Kind {
			case filetree.Data:
			case filetree.Gone:
				names = append(names, "-"+r.Path)
			default:
				names = append(names, r.Path)
			}
		}
		if copied != nil {
			entries, size := 0, int64(0)
			must.Do(w.t, w.Root.scan(filetree.MaxEntries, nil, func(f found) bool {
				entries++
				if f.stat.Mode&unix.S_IFMT == unix.S_IFREG && f.path != "again" {
					size += f.stat.Size
				}
				return true
			}))
			if copied.Entries != int64(entries) || copied.Bytes != size {
				w.t.Errorf("it has %d entries and %d bytes, the copy says %d and %d", entries, size, copied.Entries, copied.Bytes)
			}
			return strings.Join(names, " ")
		}
	}
}

// call does what a call does, and returns whether that changed nothing, and the paths
// that a copy after it has.
func (w *tracked) call(change func()) (unchanged bool, copied string) {
	w.t.Helper()
	change()
	unchanged = w.Unchanged(1000)
	w.FindExposed()
	return unchanged, w.copy()
}

func TestTracker_FindsChanges(t *testing.T) {
	for _, watched := range []bool{true, false} {
		name := "compared"
		if watched {
			name = "watched"
		}
		t.Run(name, func(t *testing.T) {
			for _, test := range []struct {
				does, copied string
				change       func(w *tracked)
			}{
				{"nothing", "", func(*tracked) {}},
				{"read", "", func(w *tracked) { must.Get(os.ReadFile(w.path("d/b")))(w.t) }},
				{"open and close", "", func(w *tracked) { must.Get(os.OpenFile(w.path("d/b"), os.O_RDWR, 0))(w.t).Close() }},
				{"write as much", "d/b", func(w *tracked) { write(w.t, w.path("d/b"), "TEXT") }},
				{"truncate", "d/e/c", func(w *tracked) { must.Do(w.t, os.Truncate(w.path("d/e/c"), 1)) }},
				{"chmod", "d/b", func(w *tracked) { must.Do(w.t, os.Chmod(w.path("d/b"), 0o600)) }},
				{"create", "d d/new", func(w *tracked) { write(w.t, w.path("d/new"), "") }},
				{"delete", "-d/b d", func(w *tracked) { must.Do(w.t, os.Remove(w.path("d/b"))) }},
				{"rename", "-d/b d d/z", func(w *tracked) { must.Do(w.t, os.Rename(w.path("d/b"), w.path("d/z"))) }},
				{"symbolic link", "link", func(w *tracked) { must.Do(w.t, os.Symlink("/etc", w.path("link"))) }},
				{"write a file with two names", "a again", func(w *tracked) { write(w.t, w.path("again"), "longer") }},
				{"make folders", "new new/er new/er/file", func(w *tracked) {
					must.Do(w.t, os.MkdirAll(w.path("new/er"), 0o755))
					write(w.t, w.path("new/er/file"), "")
				}},
				{"rename a folder", "-d -d/b -d/e -d/e/c z z/b z/e z/e/c", func(w *tracked) { must.Do(w.t, os.Rename(w.path("d"), w.path("z"))) }},
				{"delete a folder", "-d/e -d/e/c d", func(w *tracked) { must.Do(w.t, os.RemoveAll(w.path("d/e"))) }},
				{"replace a folder by a file", "-d/e/c d d/e", func(w *tracked) {
					must.Do(w.t, os.RemoveAll(w.path("d/e")))
					write(w.t, w.path("d/e"), "")
				}},
				{"more than is remembered", "-d/b d", func(w *tracked) {
					for i := range maxDirty {
						name := w.path(fmt.Sprint("d/", i))
						write(w.t, name, "")
						must.Do(w.t, os.Remove(name))
					}
					must.Do(w.t, os.Remove(w.path("d/b")))
				}},
			} {
				w := track(t, watched)
				if unchanged, copied := w.call(func() { test.change(w) }); copied != test.copied || unchanged != (test.copied == "") {
					t.Errorf("%s: unchanged %v, copied %q, want %q", test.does, unchanged, copied, test.copied)
				}
				// What there is afterwards is known, and watched.
				if unchanged, copied := w.call(func() {}); copied != "" || !unchanged {
					t.Errorf("%s, and then nothing: unchanged %v, copied %q", test.does, unchanged, copied)
				}
				must.Do(t, w.Root.scan(1000, nil, func(f found) bool {
					if f.stat.Mode&unix.S_IFMT != unix.S_IFREG || f.stat.Nlink > 1 {
						return true
					}
					if unchanged, copied := w.call(func() { write(t, w.path(f.path), "once more") }); copied != f.path || unchanged {
						t.Errorf("%s, and then write %s: unchanged %v, copied %q", test.does, f.path, unchanged, copied)
					}
					return true
				}))
			}
		})
	}
}

// A call that writes by a descriptor or a mapping that an earlier one made has changed
// the file, although the kernel tells of neither.
func TestTracker_FindsWritesToWhatIsOpen(t *testing.T) {
	w := track(t, true)
	w.Exposed = func() Exposed { return FindExposed(w.folder) }
	var file *os.File
	var memory []byte
	for _, step := range []struct {
		does, copied string
		change       func()
	}{
		{"open", "", func() { file = must.Get(os.OpenFile(w.path("d/b"), os.O_RDWR, 0))(t) }},
		{"map", "", func() {
			memory = must.Get(unix.Mmap(int(file.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
		}},
		{"write", "d/b", func() { memory[0] = 'x' }},
		// From here on the file counts as changed.
		{"write again", "d/b", func() { memory[1] = 'y' }},
		{"close", "d/b", func() { must.Do(t, file.Close()) }},
		{"write a third time", "d/b", func() { memory[2] = 'z' }},
		{"unmap", "d/b", func() { must.Do(t, unix.Munmap(memory)) }},
		{"nothing", "", func() {}},
	} {
		unchanged, copied := w.call(step.change)
		if unchanged != (step.copied == "") || copied != step.copied {
			t.Errorf("%s: unchanged %v, copied %q, want %q", step.does, unchanged, copied, step.copied)
		}
	}
}

// A copy that was begun and not finished is in the next one.
func TestTracker_CopiesAgainWhatWasNotFinished(t *testing.T) {
	w := track(t, true)
	write(t, w.path("d/b"), "other")
	must.Do(t, w.Begin(false))
	if copied := w.copy(); copied != "d/b" {
		t.Errorf("copied %q", copied)
	}
}

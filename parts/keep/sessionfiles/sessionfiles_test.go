package sessionfiles

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

var key = store.Key{Session: "s", Env: "python"}

// storeIn opens a store for tests.
func storeIn(t testing.TB, folder string, limit int64) *store.Store {
	t.Helper()
	return must.Get(Open(store.Options{Folder: folder, Limit: limit, Log: slog.New(slog.DiscardHandler)}))(t)
}

// machine stands for a sandbox: a workspace, and what its agent knows of it.
type machine struct {
	t       testing.TB
	folder  string
	tracker workspace.Tracker
}

func newMachine(t testing.TB) *machine {
	folder := t.TempDir()
	return &machine{t, folder, workspace.Tracker{Root: workspace.Root{Path: folder}}}
}

// copy copies the files as a sandbox does. It fails with broken, unless that is nil, at
// the end.
func (m *machine) copy(broken error) func(sandbox.Extent) io.Reader {
	return func(extent sandbox.Extent) io.Reader {
		copied := must.Get(m.tracker.Copy(extent == sandbox.All, extent == sandbox.Changes, m.t.Logf))(m.t)
		if copied == nil {
			return strings.NewReader("")
		}
		defer copied.Close()
		archive := must.Get(io.ReadAll(copied))(m.t)
		copied.Done()
		if broken == nil {
			return bytes.NewReader(archive)
		}
		return io.MultiReader(bytes.NewReader(archive), iotest.ErrReader(broken))
	}
}

// restore writes what is kept into the workspace.
func (m *machine) restore(files *Files) error {
	head, err := files.Head()
	if err == nil && head != nil {
		var count, size int64
		count, size, err = files.Restore(m, m.tracker.Root.Restore)
		if err == nil && (count != head.Entries || size > head.Size+head.Entries<<12 || head.Size > size+head.Entries<<12) {
			m.t.Errorf("%d entries of %d bytes are restored, and its head says %d of %d", count, size, head.Entries, head.Size)
		}
	}
	if err != nil {
		return err
	}
	return m.tracker.Settle()
}

// tree describes a folder as far as it is kept.
func treeOf(t testing.TB, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	names := map[uint64]string{}
	must.Do(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name := strings.TrimPrefix(path, folder+"/")
		text := fmt.Sprintf("%v %d", d.Type(), st.Mode&0o1777)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			text += fmt.Sprintf(" %d", st.Mtim.Nano())
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text = "link to " + target
		case unix.S_IFREG:
			text += fmt.Sprintf(" %d %d", st.Mtim.Nano(), st.Size)
			if first := names[st.Ino]; first != "" {
				text += " the same as " + first
			} else if names[st.Ino] = name; st.Size < 1<<30 {
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				text += " " + string(data)
			}
		}
		all[name] = text
		return nil
	}))
	return all
}

// history does random things to a tree, and nothing outside of it: its links lead out.
type history struct {
	*rand.Rand
	root *os.Root
}

func newHistory(t testing.TB, random *rand.Rand, folder string) history {
	root := must.Get(os.OpenRoot(folder))(t)
	t.Cleanup(func() { root.Close() })
	return history{random, root}
}

// name returns a path, mostly one of a few, so that operations meet.
func (h history) name() string {
	parts := []string{"a", "b", "with space", "quote'\"", "new\nline", "\xff\xfe", "ü", strings.Repeat("n", 255)}
	path := ""
	for range 1 + h.IntN(3) {
		path = filepath.Join(path, parts[h.IntN(len(parts))])
	}
	return path
}

// write writes at an offset of a file, which is made where there is none.
func (h history) write(name string, flags int, data []byte, at int64) {
	// Without O_NONBLOCK, a FIFO would wait for a reader.
	if f, err := h.root.OpenFile(name, os.O_WRONLY|unix.O_NONBLOCK|flags, 0o644); err == nil {
		_, _ = f.WriteAt(data, at)
		f.Close()
	}
}

// removeAll removes a tree. [os.Root.RemoveAll] would wait where a FIFO is above it.
func (h history) removeAll(name string) {
	if info, err := h.root.Stat(filepath.Dir(name)); err == nil && info.IsDir() {
		_ = h.root.RemoveAll(name)
	}
}

// step does one random thing, or nothing where it cannot be done.
func (h history) step() {
	name, other := h.name(), h.name()
	noise := func(size int) []byte {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(h.Uint32())
		}
		return data
	}
	switch h.IntN(16) {
	case 0, 1, 2:
		_ = h.root.MkdirAll(filepath.Dir(name), 0o755)
		h.write(name, os.O_CREATE|os.O_TRUNC, noise(h.IntN(100)), 0)
	case 3:
		h.write(name, os.O_CREATE, bytes.Repeat([]byte("large"), h.IntN(200_000)), 0)
	case 4:
		h.write(name, os.O_TRUNC, noise(1), h.Int64N(1000))
	case 5:
		_ = h.root.Rename(name, other)
	case 6:
		h.removeAll(name)
	case 7:
		_ = h.root.MkdirAll(name, 0o755)
	case 8: // a file takes a folder's place
		h.removeAll(name)
		h.write(name, os.O_CREATE, noise(4), 0)
	case 9:
		// Owners can read what is theirs, or it would be skipped.
		_ = h.root.Chmod(name, fs.FileMode(h.IntN(0o1000)|0o700))
	case 10:
		_ = h.root.Symlink([]string{"/etc/passwd", "../../..", "a", "\xff"}[h.IntN(4)], name)
	case 11:
		_ = h.root.Link(name, other)
	case 12:
		if dir, err := h.root.OpenFile(filepath.Dir(name), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0); err == nil {
			_ = unix.Mkfifoat(int(dir.Fd()), filepath.Base(name), 0o600)
			dir.Close()
		}
	case 13: // holes
		h.write(name, 0, []byte("piece"), h.Int64N(1<<22))
		h.write(name, 0, []byte("piece"), h.Int64N(1<<23))
	case 14:
		when := time.Unix(h.Int64N(1<<33)-1<<32, h.Int64N(1e9))
		_ = h.root.Chtimes(name, when, when)
	case 15: // of the same size, in no time
		h.write(name, 0, noise(1), 0)
	}
}

// What random histories leave is what is there again, after every call, with the
// same or a new process, and in a sandbox that goes on or a new one.
func TestSave_KeepsWhatRandomHistoriesLeave(t *testing.T) {
	histories := 25
	if long, err := strconv.Atoi(os.Getenv("NIX_SANDBOX_TEST_SOAK")); err == nil {
		histories = long
	}
	random := seed.New(t)
	for n := range histories {
		folder := t.TempDir()
		store := storeIn(t, folder, 1<<30)
		files := must.Get(acquire(store, key))(t)
		m := newMachine(t)
		h := newHistory(t, random, m.folder)
		for range 1 + random.IntN(8) {
			for range random.IntN(30) {
				h.step()
			}
			must.Do(t, files.Save(m, m.copy(nil)))
			want := treeOf(t, m.folder)
			if random.IntN(2) == 0 {
				files.Close()
				files = must.Get(acquire(store, key))(t)
			}
			again := newMachine(t)
			must.Do(t, again.restore(files))
			if diff := cmp.Diff(want, treeOf(t, again.folder)); diff != "" {
				t.Fatalf("history %d: %s", n, diff)
			}
			if copied := must.Get(again.tracker.Copy(false, false, t.Logf))(t); copied != nil {
				t.Fatalf("history %d: what was restored counts as changed", n)
			}
			if random.IntN(2) == 0 {
				m = again
				h = newHistory(t, random, m.folder)
			}
		}
		files.Close()
	}
}

// saved returns a store with a session that was saved several times, and its tree.
func saved(t testing.TB, folder string) (*store.Store, map[string]string) {
	t.Helper()
	store := storeIn(t, folder, 1<<30)
	files := must.Get(acquire(store, key))(t)
	m := newMachine(t)
	for i := range 3 {
		must.Do(t, os.WriteFile(filepath.Join(m.folder, fmt.Sprint(i)), bytes.Repeat([]byte{'a' + byte(i)}, 5000), 0o644))
		must.Do(t, os.WriteFile(filepath.Join(m.folder, "changed"), fmt.Append(nil, i), 0o644))
		must.Do(t, files.Save(m, m.copy(nil)))
	}
	files.Close()
	return store, treeOf(t, m.folder)
}

// archiveIn returns the path of the only archive in a store.
func archiveIn(t testing.TB, folder string) string {
	t.Helper()
	names := must.Get(filepath.Glob(filepath.Join(folder, "*", "data-*")))(t)
	if len(names) != 1 {
		t.Fatalf("there are the archives %q", names)
	}
	return names[0]
}

// A call that changes nothing saves nothing.
func TestSave_SavesNothingWithoutAChange(t *testing.T) {
	folder := t.TempDir()
	store, _ := saved(t, folder)
	files := must.Get(acquire(store, key))(t)
	defer files.Close()
	m := newMachine(t)
	must.Do(t, m.restore(files))
	saved := func() string { return must.Get(files.Head())(t).Sum }
	before := saved()
	must.Do(t, files.Save(m, m.copy(nil)))
	if saved() != before {
		t.Error("something was saved")
	}
	must.Do(t, os.Remove(filepath.Join(m.folder, "0")))
	must.Do(t, files.Save(m, m.copy(nil)))
	if saved() == before {
		t.Error("a change was not saved")
	}
}

// A sandbox does not know of a file that another one of the same workspace has made, and whose removal it
// sees: it saves everything.
func TestSave_OfAnotherSandboxSavesEverything(t *testing.T) {
	files := must.Get(acquire(storeIn(t, t.TempDir(), 1<<30), key))(t)
	defer files.Close()
	first := newMachine(t)
	second := &machine{t, first.folder, workspace.Tracker{Root: workspace.Root{Path: first.folder}}}
	for i := range 9 {
		must.Do(t, os.WriteFile(filepath.Join(first.folder, fmt.Sprint(i)), nil, 0o644))
	}
	must.Do(t, files.Save(second, second.copy(nil)))
	must.Do(t, files.Save(first, first.copy(nil)))
	must.Do(t, os.WriteFile(filepath.Join(first.folder, "new"), nil, 0o644))
	must.Do(t, files.Save(second, second.copy(nil)))
	must.Do(t, os.Remove(filepath.Join(first.folder, "new")))
	must.Do(t, files.Save(first, first.copy(nil)))
	again := newMachine(t)
	must.Do(t, again.restore(files))
	if diff := cmp.Diff(treeOf(t, first.folder), treeOf(t, again.folder)); diff != "" {
		t.Error(diff)
	}
}

// Changes are added to an archive, which is written anew once in a while; what a server that was killed
// left behind it is no part of it.
func TestSave_AddsWhatHasChanged(t *testing.T) {
	folder := t.TempDir()
	kept := storeIn(t, folder, 1<<30)
	files := must.Get(acquire(kept, key))(t)
	m := newMachine(t)
	random := seed.New(t)
	for i := range 100 {
		noise := make([]byte, 1000)
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		must.Do(t, os.WriteFile(filepath.Join(m.folder, fmt.Sprint(i)), noise, 0o644))
	}
	must.Do(t, files.Save(m, m.copy(nil)))
	all := must.Get(files.Head())(t).Bytes
	most := 0
	for i := range 3 * maxParts {
		must.Do(t, os.WriteFile(filepath.Join(m.folder, "7"), fmt.Append(nil, i), 0o644))
		must.Do(t, files.Save(m, m.copy(nil)))
		head := must.Get(files.Head())(t)
		most = max(most, len(head.Parts))
		if head.Bytes > all+maxParts*1000 {
			t.Fatalf("%d bytes after %d changes, and %d before", head.Bytes, i+1, all)
		}
		if i == maxParts/2 {
			left := must.Get(os.OpenFile(archiveIn(t, folder), os.O_WRONLY|os.O_APPEND, 0))(t)
			must.Get(left.WriteString("left by a server that was killed"))(t)
			must.Do(t, left.Close())
			files.Close()
			files = must.Get(acquire(kept, key))(t)
			again := newMachine(t)
			must.Do(t, again.restore(files))
			m = again
		}
	}
	if most != maxParts {
		t.Errorf("an archive has at most %d parts, want %d", most, maxParts)
	}
	again := newMachine(t)
	must.Do(t, again.restore(files))
	if diff := cmp.Diff(treeOf(t, m.folder), treeOf(t, again.folder)); diff != "" {
		t.Error(diff)
	}
	// An archive that has made room for those of others is written anew.
	must.Do(t, os.Remove(archiveIn(t, folder)))
	must.Do(t, os.WriteFile(filepath.Join(m.folder, "7"), nil, 0o644))
	must.Do(t, files.Save(m, m.copy(nil)))
	archiveIn(t, folder)
	files.Close()
}

// A copy that does not end leaves what was kept before, and the next save has
// everything.
func TestSave_LeavesTheLastOneIfItFails(t *testing.T) {
	folder := t.TempDir()
	store, want := saved(t, folder)
	files := must.Get(acquire(store, key))(t)
	defer files.Close()
	m := newMachine(t)
	must.Do(t, m.restore(files))
	must.Do(t, os.WriteFile(filepath.Join(m.folder, "new"), bytes.Repeat([]byte("new"), 1<<20), 0o644))
	broken := errors.New("the sandbox ended")
	for name, copy := range map[string]func(sandbox.Extent) io.Reader{
		"at once": func(sandbox.Extent) io.Reader { return iotest.ErrReader(broken) },
		"in the middle": func(extent sandbox.Extent) io.Reader {
			return io.MultiReader(io.LimitReader(m.copy(nil)(extent), 1<<20), iotest.ErrReader(broken))
		},
		"at its end": m.copy(broken),
	} {
		if err := files.Save(m, copy); !errors.Is(err, broken) {
			t.Errorf("%s: error %v", name, err)
		}
		archiveIn(t, folder)
		again := newMachine(t)
		must.Do(t, again.restore(files))
		if diff := cmp.Diff(want, treeOf(t, again.folder)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	must.Do(t, files.Save(m, m.copy(nil)))
	again := newMachine(t)
	must.Do(t, again.restore(files))
	if diff := cmp.Diff(treeOf(t, m.folder), treeOf(t, again.folder)); diff != "" {
		t.Error(diff)
	}
}

// An archive that is no tree is not saved, and what was kept before is.
func TestSave_RefusesWhatIsNoTree(t *testing.T) {
	store, want := saved(t, t.TempDir())
	files := must.Get(acquire(store, key))(t)
	defer files.Close()
	for _, headers := range [][]tar.Header{
		{{Typeflag: tar.TypeReg, Name: "../file"}},
		{{Typeflag: tar.TypeReg, Name: "/file"}},
		{{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "/etc"}, {Typeflag: tar.TypeReg, Name: "link/passwd"}},
		{{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "/etc"}, {Typeflag: tar.TypeLink, Name: "x", Linkname: "link/passwd"}},
		{{Typeflag: tar.TypeChar, Name: "device"}},
		{{Typeflag: tar.TypeReg, Name: "file", Mode: 0o4755}},
		{{Typeflag: tar.TypeReg, Name: "file", PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y"}}},
	} {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, header := range headers {
			must.Do(t, w.WriteHeader(&header))
		}
		must.Do(t, w.Close())
		if err := files.Save(nil, func(sandbox.Extent) io.Reader { return &archive }); err == nil {
			t.Errorf("%+v was saved", headers)
		}
	}
	again := newMachine(t)
	must.Do(t, again.restore(files))
	if diff := cmp.Diff(want, treeOf(t, again.folder)); diff != "" {
		t.Error(diff)
	}
}

// Whatever byte of what is kept is another one, and wherever it is cut, nothing of it
// is restored; then it is set aside, and the session begins with nothing.
func TestRestore_RefusesWhatIsDamaged(t *testing.T) {
	random := seed.New(t)
	source := t.TempDir()
	_, want := saved(t, source)
	archive := filepath.Base(archiveIn(t, source))
	damage := map[string]func(data []byte) []byte{
		"a byte": func(data []byte) []byte { data[random.IntN(len(data))] ^= byte(1 + random.IntN(255)); return data },
		"a cut":  func(data []byte) []byte { return data[:random.IntN(len(data))] },
		"zeros":  func(data []byte) []byte { clear(data[random.IntN(len(data)):]); return data },
		"none":   func(data []byte) []byte { return data }, // the control
	}
	for name, damage := range damage {
		for _, file := range []string{"head", archive} {
			for n := range 100 {
				folder := t.TempDir()
				must.Do(t, os.CopyFS(folder, os.DirFS(source)))
				path := filepath.Join(filepath.Dir(archiveIn(t, folder)), file)
				before := must.Get(os.ReadFile(path))(t)
				after := damage(bytes.Clone(before))
				must.Do(t, os.WriteFile(path, after, 0o600))
				files := must.Get(acquire(storeIn(t, folder, 1<<30), key))(t)
				m := newMachine(t)
				err := m.restore(files)
				var damaged *store.DamagedError
				switch {
				case bytes.Equal(before, after):
					if diff := cmp.Diff(want, treeOf(t, m.folder)); err != nil || diff != "" {
						t.Fatalf("error %v, %s", err, diff)
					}
				case !errors.As(err, &damaged):
					t.Fatalf("%s of %s: error %v", name, file, err)
				case len(treeOf(t, m.folder)) > 0:
					t.Fatalf("%s of %s: half restored", name, file)
				case n == 0:
					aside := must.Get(files.SetAside())(t)
					if got := must.Get(os.ReadFile(filepath.Join(aside, file)))(t); !bytes.Equal(got, after) {
						t.Errorf("%s of %s: what was set aside is another file", name, file)
					}
					must.Do(t, m.restore(files))
					must.Do(t, files.Save(m, m.copy(nil)))
				}
				files.Close()
				if name == "none" {
					break
				}
			}
		}
	}
}

// Files that are too large are not saved, and what was saved before is.
func TestSave_IsBounded(t *testing.T) {
	kept := storeIn(t, t.TempDir(), 300<<10)
	files := must.Get(acquire(kept, key))(t)
	defer files.Close()
	m := newMachine(t)
	in := func(name string) string { return filepath.Join(m.folder, name) }
	must.Do(t, os.WriteFile(in("f"), []byte("text"), 0o644))
	must.Do(t, files.Save(m, m.copy(nil)))
	want := treeOf(t, m.folder)
	must.Do(t, os.WriteFile(in("large"), make([]byte, 300<<10), 0o644))
	var large *store.TooLargeError
	if err := files.Save(m, m.copy(nil)); !errors.As(err, &large) {
		t.Errorf("error %v", err)
	}
	again := newMachine(t)
	must.Do(t, again.restore(files))
	if diff := cmp.Diff(want, treeOf(t, again.folder)); diff != "" {
		t.Error(diff)
	}
	// Holes do not count.
	must.Do(t, os.Remove(in("large")))
	must.Do(t, os.WriteFile(in("sparse"), nil, 0o644))
	must.Do(t, os.Truncate(in("sparse"), 1<<40))
	must.Do(t, files.Save(m, m.copy(nil)))
}

// An export has the files of a session, also while a server has it.
func TestExport_WritesATarFile(t *testing.T) {
	folder := t.TempDir()
	files := must.Get(acquire(storeIn(t, folder, 1<<30), key))(t)
	defer files.Close()
	m := newMachine(t)
	in := func(name string) string { return filepath.Join(m.folder, name) }
	must.Do(t, os.MkdirAll(in("folder/\xff"), 0o750))
	must.Do(t, os.WriteFile(in("folder/\xff/new\nline"), []byte("text"), 0o640))
	must.Do(t, os.Link(in("folder/\xff/new\nline"), in("second")))
	must.Do(t, os.Symlink("/etc/passwd", in("link")))
	must.Do(t, unix.Mkfifo(in("fifo"), 0o600))
	sparse := must.Get(os.Create(in("sparse")))(t)
	must.Get(sparse.WriteAt([]byte("middle"), 1<<20))(t)
	must.Do(t, sparse.Truncate(2<<20))
	must.Do(t, sparse.Close())
	must.Do(t, files.Save(m, m.copy(nil)))
	var archive bytes.Buffer
	must.Do(t, Export(must.Get(store.List(folder))(t)[0], &archive))
	zip := must.Get(zstd.NewReader(&archive))(t)
	defer zip.Close()
	var got []string
	for reader := tar.NewReader(zip); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.Do(t, err)
		data := bytes.TrimRight(must.Get(io.ReadAll(reader))(t), "\x00")
		got = append(got, fmt.Sprintf("%c %q %q %d %q %v", header.Typeflag, header.Name, header.Linkname, header.Size, bytes.TrimLeft(data, "\x00"), header.Typeflag != tar.TypeReg || header.ModTime.After(time.Now().Add(-time.Hour))))
	}
	want := []string{
		`5 "folder/" "" 0 "" true`, `5 "folder/\xff/" "" 0 "" true`, `6 "fifo" "" 0 "" true`, `2 "link" "/etc/passwd" 0 "" true`,
		`0 "sparse" "" 2097152 "middle" true`, `0 "folder/\xff/new\nline" "" 4 "text" true`, `1 "second" "folder/\xff/new\nline" 0 "" true`,
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// What would fill a disk with zeros is refused.
	must.Do(t, os.Truncate(in("sparse"), 1<<40))
	must.Do(t, files.Save(m, m.copy(nil)))
	if err := Export(must.Get(store.List(folder))(t)[0], io.Discard); err == nil || !strings.Contains(err.Error(), "with their holes") {
		t.Errorf("error %v", err)
	}
}

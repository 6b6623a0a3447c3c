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
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/lockedfolder"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

var key = Key{Session: "s", Env: "python"}

// storeIn opens a store for tests.
func storeIn(t testing.TB, folder string, limit int64) *Store {
	t.Helper()
	return must.Get(Open(folder, limit, "project /p", slog.New(slog.DiscardHandler)))(t)
}

// machine stands for a sandbox: a workspace, and what its agent knows of it.
type machine struct {
	folder  string
	tracker workspace.Tracker
}

func newMachine(t testing.TB) *machine {
	folder := t.TempDir()
	m := &machine{folder, workspace.Tracker{Root: workspace.Root{Path: folder}}}
	t.Cleanup(m.tracker.Close)
	return m
}

// copy is a [CopyFunc].
func (m *machine) copy(full bool, send func([]byte) error) (frame.Copied, error) {
	if err := m.tracker.Begin(full); err != nil {
		return frame.Copied{}, err
	}
	for {
		part, copied, err := m.tracker.Next()
		if err != nil {
			return frame.Copied{}, err
		}
		if err := send(part); err != nil {
			return frame.Copied{}, err
		}
		if copied != nil {
			return *copied, nil
		}
	}
}

// restore writes what is kept into the workspace.
func (m *machine) restore(files *Files) error {
	r := workspace.Restorer{Root: m.tracker.Root}
	defer r.Close()
	if err := files.Restore(r.Write); err != nil {
		return err
	}
	if err := r.End(); err != nil {
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
		files := must.Get(store.Acquire(key))(t)
		m := newMachine(t)
		h := newHistory(t, random, m.folder)
		for range 1 + random.IntN(8) {
			for range random.IntN(30) {
				h.step()
			}
			must.Get(files.Save(m.copy))(t)
			want := treeOf(t, m.folder)
			if random.IntN(2) == 0 {
				files.Close()
				files = must.Get(store.Acquire(key))(t)
			}
			again := newMachine(t)
			must.Do(t, again.restore(files))
			if diff := cmp.Diff(want, treeOf(t, again.folder)); diff != "" {
				t.Fatalf("history %d: %s", n, diff)
			}
			if !again.tracker.Unchanged(1 << 20) {
				t.Fatalf("history %d: what was restored counts as changed", n)
			}
			// The kernel watches few workspaces at once.
			if random.IntN(2) == 0 {
				m, again = again, m
				h = newHistory(t, random, m.folder)
			}
			again.tracker.Close()
		}
		files.Close()
	}
}

// saved returns a store with a session that was saved several times, and its tree.
func saved(t testing.TB, folder string) (*Store, map[string]string) {
	t.Helper()
	store := storeIn(t, folder, 1<<30)
	files := must.Get(store.Acquire(key))(t)
	m := newMachine(t)
	for i := range 3 {
		must.Do(t, os.WriteFile(filepath.Join(m.folder, fmt.Sprint(i)), bytes.Repeat([]byte{'a' + byte(i)}, 5000), 0o644))
		must.Do(t, os.WriteFile(filepath.Join(m.folder, "changed"), fmt.Append(nil, i), 0o644))
		must.Get(files.Save(m.copy))(t)
	}
	files.Close()
	return store, treeOf(t, m.folder)
}

// A copy that does not end leaves what was kept before, and the next save has
// everything.
func TestSave_LeavesTheLastOneWhereItFails(t *testing.T) {
	store, want := saved(t, t.TempDir())
	files := must.Get(store.Acquire(key))(t)
	defer files.Close()
	m := newMachine(t)
	must.Do(t, m.restore(files))
	must.Do(t, os.WriteFile(filepath.Join(m.folder, "new"), bytes.Repeat([]byte("new"), 1<<20), 0o644))
	broken := errors.New("the sandbox ended")
	for name, copy := range map[string]CopyFunc{
		"at once": func(bool, func([]byte) error) (frame.Copied, error) { return frame.Copied{}, broken },
		"in the middle": func(full bool, send func([]byte) error) (frame.Copied, error) {
			if err := m.tracker.Begin(full); err != nil {
				return frame.Copied{}, err
			}
			part, _, err := m.tracker.Next()
			return frame.Copied{}, errors.Join(err, send(part), broken)
		},
		"at its end": func(full bool, send func([]byte) error) (frame.Copied, error) {
			_, err := m.copy(full, send)
			return frame.Copied{}, errors.Join(err, broken)
		},
	} {
		if _, err := files.Save(copy); !errors.Is(err, broken) {
			t.Errorf("%s: error %v", name, err)
		}
		again := newMachine(t)
		must.Do(t, again.restore(files))
		if diff := cmp.Diff(want, treeOf(t, again.folder)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	must.Get(files.Save(m.copy))(t)
	again := newMachine(t)
	must.Do(t, again.restore(files))
	if diff := cmp.Diff(treeOf(t, m.folder), treeOf(t, again.folder)); diff != "" {
		t.Error(diff)
	}
}

// Whatever byte of what is kept is another one, and wherever it is cut, nothing of it
// is restored; then it is set aside, and the session begins with nothing.
func TestRestore_RefusesWhatIsDamaged(t *testing.T) {
	random := seed.New(t)
	source := t.TempDir()
	_, want := saved(t, source)
	damage := map[string]func(data []byte) []byte{
		"a byte": func(data []byte) []byte { data[random.IntN(len(data))] ^= byte(1 + random.IntN(255)); return data },
		"a cut":  func(data []byte) []byte { return data[:random.IntN(len(data))] },
		"zeros":  func(data []byte) []byte { clear(data[random.IntN(len(data)):]); return data },
		"none":   func(data []byte) []byte { return data }, // the control
	}
	for name, damage := range damage {
		for _, file := range []string{headName, "1" + logSuffix} {
			for n := range 100 {
				folder := t.TempDir()
				must.Do(t, os.CopyFS(folder, os.DirFS(source)))
				path := filepath.Join(folder, lockedfolder.Name(key), file)
				before := must.Get(os.ReadFile(path))(t)
				after := damage(bytes.Clone(before))
				must.Do(t, os.WriteFile(path, after, 0o600))
				store := storeIn(t, folder, 1<<30)
				files := must.Get(store.Acquire(key))(t)
				m := newMachine(t)
				err := m.restore(files)
				var damaged *DamagedError
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
					must.Get(files.Save(m.copy))(t)
				}
				files.Close()
				if name == "none" {
					break
				}
			}
		}
	}
}

// What is left of a save that was not committed changes nothing.
func TestAcquire_ForgetsWhatWasNotCommitted(t *testing.T) {
	folder := t.TempDir()
	store, want := saved(t, folder)
	session := filepath.Join(folder, lockedfolder.Name(key))
	log := must.Get(os.OpenFile(filepath.Join(session, "1"+logSuffix), os.O_APPEND|os.O_WRONLY, 0))(t)
	must.Get(log.Write(bytes.Repeat([]byte("half a save"), 1000)))(t)
	must.Do(t, log.Close())
	must.Do(t, os.WriteFile(filepath.Join(session, "2"+logSuffix), []byte("another log"), 0o600))
	must.Do(t, os.WriteFile(filepath.Join(session, newHeadName), []byte("half a head"), 0o600))
	files := must.Get(store.Acquire(key))(t)
	defer files.Close()
	m := newMachine(t)
	must.Do(t, m.restore(files))
	if diff := cmp.Diff(want, treeOf(t, m.folder)); diff != "" {
		t.Error(diff)
	}
	must.Do(t, os.WriteFile(filepath.Join(m.folder, "new"), nil, 0o644))
	must.Get(files.Save(m.copy))(t)
	again := newMachine(t)
	must.Do(t, again.restore(files))
	if diff := cmp.Diff(treeOf(t, m.folder), treeOf(t, again.folder)); diff != "" {
		t.Error(diff)
	}
	if names := must.Get(filepath.Glob(session + "/*"))(t); len(names) != 3 {
		t.Errorf("files %q", names)
	}
}

// One process has a session's files; others hear which one.
func TestAcquire_RefusesASecond(t *testing.T) {
	folder := t.TempDir()
	first, second := storeIn(t, folder, 1<<30), storeIn(t, folder, 1<<30)
	files := must.Get(first.Acquire(key))(t)
	_, err := second.Acquire(key)
	var inUse *InUseError
	if !errors.As(err, &inUse) || inUse.Holder.PID != os.Getpid() || inUse.Holder.About != "project /p" || time.Since(inUse.Holder.Since) > time.Hour {
		t.Fatalf("error %v, %+v", err, inUse)
	}
	for _, other := range []Key{{Session: "s2", Env: "python"}, {Session: "s", Env: "bash"}, {Principal: "p", Session: "s", Env: "python"}} {
		must.Get(second.Acquire(other))(t).Close()
	}
	files.Close()
	must.Get(second.Acquire(key))(t).Close()
	// Nothing was kept, so that nothing is left.
	if left := must.Get(os.ReadDir(folder))(t); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// Where all sessions together are too large, those go that were saved longest ago, but
// none that is in use.
func TestSave_IsBounded(t *testing.T) {
	folder := t.TempDir()
	store := storeIn(t, folder, 300<<10)
	random := seed.New(t)
	noise := func() []byte {
		data := make([]byte, 100<<10)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		return data
	}
	save := func(session string) *Files {
		files := must.Get(store.Acquire(Key{Session: session, Env: "e"}))(t)
		m := newMachine(t)
		must.Do(t, os.WriteFile(filepath.Join(m.folder, "f"), noise(), 0o644))
		must.Get(files.Save(m.copy))(t)
		// The order is that of the files' times.
		time.Sleep(15 * time.Millisecond)
		return files
	}
	names := func() (names []string) {
		for _, s := range must.Get(List(folder))(t) {
			names = append(names, s.Head.Session)
		}
		return names
	}
	held := save("held")
	defer held.Close()
	save("old").Close()
	if diff := cmp.Diff([]string{"old", "held"}, names()); diff != "" {
		t.Fatal(diff)
	}
	save("new").Close()
	if diff := cmp.Diff([]string{"new", "held"}, names()); diff != "" {
		t.Error(diff)
	}
	// One that is too large by itself is not saved, and what it had is.
	files := must.Get(store.Acquire(Key{Session: "new", Env: "e"}))(t)
	defer files.Close()
	m := newMachine(t)
	must.Do(t, m.restore(files))
	want := treeOf(t, m.folder)
	must.Do(t, os.WriteFile(filepath.Join(m.folder, "large"), bytes.Repeat(noise(), 4), 0o644))
	var large *TooLargeError
	if _, err := files.Save(m.copy); !errors.As(err, &large) {
		t.Errorf("error %v", err)
	}
	again := newMachine(t)
	must.Do(t, again.restore(files))
	if diff := cmp.Diff(want, treeOf(t, again.folder)); diff != "" {
		t.Error(diff)
	}
}

// A log does not grow without end where the same file changes again and again.
func TestSave_BeginsALogAnew(t *testing.T) {
	folder := t.TempDir()
	store := storeIn(t, folder, 1<<30)
	files := must.Get(store.Acquire(key))(t)
	defer files.Close()
	m := newMachine(t)
	random := seed.New(t)
	data := make([]byte, 1<<20)
	for range 50 {
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		must.Do(t, os.WriteFile(filepath.Join(m.folder, "f"), data, 0o644))
		must.Get(files.Save(m.copy))(t)
		var disk int64
		for _, s := range must.Get(List(folder))(t) {
			disk += s.Disk
		}
		if disk > 10<<20 {
			t.Fatalf("a file of 1 MiB takes %d bytes", disk)
		}
	}
	again := newMachine(t)
	must.Do(t, again.restore(files))
	if diff := cmp.Diff(treeOf(t, m.folder), treeOf(t, again.folder)); diff != "" {
		t.Error("another tree")
	}
}

// An export has the files of a session, also while a server has it.
func TestExport_WritesATarFile(t *testing.T) {
	folder := t.TempDir()
	store := storeIn(t, folder, 1<<30)
	files := must.Get(store.Acquire(key))(t)
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
	must.Get(files.Save(m.copy))(t)
	var archive bytes.Buffer
	must.Do(t, must.Get(List(folder))(t)[0].Export(&archive))
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
		`0 "sparse" "" 2097152 "middle" true`, `0 "second" "" 4 "text" true`, `1 "folder/\xff/new\nline" "second" 0 "" true`,
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// What would fill a disk with zeros is refused.
	must.Do(t, os.Truncate(in("sparse"), 1<<40))
	must.Get(files.Save(m.copy))(t)
	if err := must.Get(List(folder))(t)[0].Export(io.Discard); err == nil || !strings.Contains(err.Error(), "with their holes") {
		t.Errorf("error %v", err)
	}
}

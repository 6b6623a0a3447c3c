package changes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// insideVariable tells a test that it runs in namespaces of its own, where it may mount.
const insideVariable = "NIX_SANDBOX_TEST_INSIDE"

// mounts runs the calling test in a process with user and mount namespaces of its own,
// and returns true there. In this process it reports what came of that, and returns
// false.
func mounts(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideVariable) == "1" {
		must.Do(t, unix.Mount("tmpfs", os.TempDir(), "tmpfs", 0, "size=1g"))
		return true
	}
	limit := time.Duration(0)
	if deadline, ok := t.Deadline(); ok {
		limit = time.Until(deadline)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout="+limit.String())
	cmd.Env = append(os.Environ(), insideVariable+"=1", "TMPDIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, unix.EPERM):
		t.Skip("user namespaces are forbidden here")
	case err != nil:
		t.Fatalf("%v: %s", err, out)
	case bytes.Contains(out, []byte("--- SKIP")):
		t.Skipf("%s", out)
	}
	t.Logf("%s", out)
	return false
}

// bench is an overlay that a test writes to, with what records the changes in it.
type bench struct {
	base, upper, merged, folder string
	record                      *changes.Record
}

// newBench mounts an overlay over a folder, which fill has filled.
func newBench(t *testing.T, fill func(base string)) *bench {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "overlay"))(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"base", "upper", "work", "merged"} {
		must.Do(t, os.Mkdir(at(name), 0o755))
	}
	fill(at("base"))
	time.Sleep(25 * time.Millisecond) // the project is older than the sandbox
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,userxattr", at("base"), at("upper"), at("work"))
	if err := unix.Mount("overlay", at("merged"), "overlay", 0, options); err != nil {
		t.Skipf("this kernel makes no overlays in user namespaces: %v", err)
	}
	store := must.Get(changes.Open(at("changes"), slog.New(slog.NewTextHandler(t.Output(), nil))))(t)
	upper := must.Get(os.Open(at("upper")))(t)
	record := must.Get(store.Begin(changes.Head{Key: changes.Key{Session: "test"}, Project: at("base")}, upper))(t)
	record.SetMaxTime(time.Hour)
	t.Cleanup(func() {
		record.Close()
		must.Do(t, unix.Unmount(at("merged"), unix.MNT_DETACH))
		must.Do(t, os.RemoveAll(dir))
	})
	return &bench{at("base"), at("upper"), at("merged"), at("changes"), record}
}

// save saves what a call changed that began at this time.
func (b *bench) save(began time.Time) {
	b.record.Early()
	b.record.Save(context.Background(), began)
}

// entry is what is saved; nil where that is nothing. The test closes it.
func (b *bench) entry(t *testing.T) *changes.Entry {
	t.Helper()
	entries, broken := changes.List(b.folder)
	if len(broken) > 0 || len(entries) > 1 {
		t.Fatalf("%d entries, errors %v", len(entries), broken)
	}
	if len(entries) == 0 {
		return nil
	}
	t.Cleanup(func() { entries[0].Close() })
	return entries[0]
}

// all are the paths that a patch changes.
func all(t *testing.T, entry *changes.Entry) (names []string) {
	t.Helper()
	must.Do(t, gitpatch.Read(entry.Patch(), func(file gitpatch.File) error {
		names = append(names, file.Name)
		return nil
	}))
	return slices.Compact(names)
}

// files are the files and links of a tree, as a patch can carry them: names, whether
// they can be executed, contents.
func files(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	must.Do(t, filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		if rel == ".git" {
			return fs.SkipDir
		}
		switch entry.Type() {
		case fs.ModeSymlink:
			found[rel] = "link " + must.Get(os.Readlink(name))(t)
		case 0:
			info := must.Get(entry.Info())(t)
			found[rel] = fmt.Sprintf("file %v %s", info.Mode()&0o100 != 0, must.Get(os.ReadFile(name))(t))
		}
		return nil
	}))
	return found
}

// copyTree copies the files and links of a tree, and of its folders those that have any:
// git knows no others, and git apply does not replace one that has an empty one in it.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	must.Do(t, filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, name)
		target := filepath.Join(to, rel)
		if !entry.IsDir() {
			must.Do(t, os.MkdirAll(filepath.Dir(target), 0o755))
		}
		switch entry.Type() {
		case fs.ModeSymlink:
			return os.Symlink(must.Get(os.Readlink(name))(t), target)
		case 0:
			info := must.Get(entry.Info())(t)
			return os.WriteFile(target, must.Get(os.ReadFile(name))(t), info.Mode().Perm())
		}
		return nil
	}))
}

// gitApply applies a patch in a folder.
func gitApply(dir string, patch []byte) error {
	cmd := exec.Command("git", "apply", "--whitespace=nowarn", "-")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME=/nonexistent", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	cmd.Stdin = bytes.NewReader(patch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git apply: %w: %s", err, out)
	}
	return nil
}

// historiesVariable is the number of random histories that are tried.
const historiesVariable = "NIX_SANDBOX_TEST_HISTORIES"

// TestOverlay_PatchMakesWhatTheSandboxSaw changes random projects in random ways through
// a real overlay, and applies the patch to a copy of the project.
func TestOverlay_PatchMakesWhatTheSandboxSaw(t *testing.T) {
	if !mounts(t) {
		return
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git, which applies the patches")
	}
	histories := 60
	if text := os.Getenv(historiesVariable); text != "" {
		histories = must.Get(strconv.Atoi(text))(t)
	}
	random := seed.New(t)
	patches, conflicts, refused, passed, operations := 0, 0, 0, map[string]int{}, map[string]int{}
	for i := range histories {
		ok := t.Run(strconv.Itoa(i), func(t *testing.T) {
			b := newBench(t, func(base string) {
				h := history{random: random, root: base, isProject: true, done: map[string]int{}}
				for range random.IntN(30) {
					h.step()
				}
			})
			copied := must.Get(os.MkdirTemp("", "copy"))(t)
			defer os.RemoveAll(copied)
			copyTree(t, b.base, copied)
			h := history{random: random, root: b.merged, done: operations}
			for range 1 + random.IntN(3) {
				began := time.Now()
				for range random.IntN(12) {
					h.step()
				}
				b.save(began)
			}
			if random.IntN(4) == 0 {
				must.Do(t, exec.Command("git", "init", "-q", copied).Run())
			}
			want := files(t, b.merged)
			entry := b.entry(t)
			var patch []byte
			if entry != nil {
				patch = must.Get(io.ReadAll(entry.Patch()))(t)
			}
			if len(patch) > 0 {
				patches++
				if err := gitApply(copied, patch); err != nil {
					t.Fatalf("%v\n%s\n%s", err, strings.Join(h.log, "\n"), clip(patch))
				}
			}
			if diff := cmp.Diff(want, files(t, copied)); diff != "" {
				t.Fatalf("the patch makes something else: %s\n%s\n%s", diff, strings.Join(h.log, "\n"), clip(patch))
			}
			if entry == nil {
				return
			}
			// The same without git, applied to the project itself: first the files that pass, or
			// none of them if one conflicts with what is left out; then everything, by name.
			was := files(t, b.base)
			expected := maps.Clone(was)
			applied, err := changes.Apply(t.Context(), entry, nil)
			var conflict *changes.ConflictError
			switch {
			case errors.As(err, &conflict):
				conflicts++
			case err != nil && (strings.HasPrefix(err.Error(), "write ") && !strings.Contains(err.Error(), "put back")):
				conflicts++ // a folder that is to become a file has something that is left out
			case err != nil:
				t.Fatalf("%v\n%s\n%s", err, strings.Join(h.log, "\n"), clip(patch))
			default:
				for _, name := range slices.Concat(applied.Written, applied.Deleted) {
					passed[name]++
					delete(expected, name)
					if content, found := want[name]; found {
						expected[name] = content
					}
				}
				for _, file := range applied.Refused {
					refused++
					if content, found := was[file.Path]; found != (files(t, b.base)[file.Path] != "") || found && files(t, b.base)[file.Path] != content {
						t.Fatalf("%q was refused and changed", file.Path)
					}
				}
			}
			if diff := cmp.Diff(expected, files(t, b.base)); diff != "" {
				t.Fatalf("applied unasked, error %v: %s\n%s\n%s", err, diff, strings.Join(h.log, "\n"), clip(patch))
			}
			if _, err = changes.Apply(t.Context(), entry, all(t, entry)); err != nil {
				t.Fatalf("%v\n%s\n%s", err, strings.Join(h.log, "\n"), clip(patch))
			}
			if diff := cmp.Diff(want, files(t, b.base)); diff != "" {
				t.Fatalf("applied, the project is something else: %s\n%s\n%s", diff, strings.Join(h.log, "\n"), clip(patch))
			}
		})
		if !ok {
			break
		}
	}
	t.Logf("%d histories, %d patches, operations: %v", histories, patches, operations)
	t.Logf("applied unasked: %v; %d files were refused, %d patches conflicted with what was left out", passed, refused, conflicts)
	if patches < histories/2 || conflicts > patches/2 || len(passed) < 3 {
		t.Errorf("only %d of %d histories have a patch, or too few pass", patches, histories)
	}
}

func clip(text []byte) []byte { return text[:min(len(text), 8<<10)] }

// history is what code does to a folder.
type history struct {
	random *rand.Rand
	root   string
	// isProject says that it makes a project, whose FIFOs would be in the way of files.
	isProject bool
	done      map[string]int
	log       []string
}

var names = []string{
	"a", "b", "c", "dir", "with space", " lead", "trail ", "quote\"s", "new\nline", "tab\t", "back\\slash", "umläut",
	"\xff\xfe", "-dash", "dev null", "{}", "日本", "\x01\x7f", "~", "\u202egpj.exe",
}

// plainNames are those that may be applied unasked.
var plainNames = []string{"a.txt", "b.py", "words.go", "guide.md", "日本.rs", "with space.ts", "table.csv"}

// path returns a path, of folders that exist and something that may.
func (h *history) path() string {
	at := h.root
	for {
		from := names
		if h.random.IntN(2) == 0 {
			from = plainNames
		}
		at = filepath.Join(at, from[h.random.IntN(len(from))])
		info, err := os.Lstat(at)
		if err != nil || !info.IsDir() || h.random.IntN(4) == 0 {
			return at
		}
	}
}

// existing returns something that exists below the root, or nothing.
func (h *history) existing(kinds ...fs.FileMode) string {
	var all []string
	_ = filepath.WalkDir(h.root, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && name != h.root && slices.Contains(kinds, entry.Type()) {
			all = append(all, name)
		}
		return nil
	})
	if len(all) == 0 {
		return ""
	}
	return all[h.random.IntN(len(all))]
}

func (h *history) content() []byte {
	r := h.random
	switch r.IntN(8) {
	case 0:
		return nil
	case 1:
		data := make([]byte, r.IntN(300))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		return data
	case 2:
		return bytes.Repeat([]byte{0}, r.IntN(5000))
	case 3:
		return []byte("no newline at the end")
	case 4:
		return []byte("dos\r\nlines\r\n\rand more\n\xe4\xf6\n")
	case 5:
		return []byte(strings.Repeat("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-- \nindex 0..1\n", 1+r.IntN(3)))
	}
	var text strings.Builder
	for range r.IntN(60) {
		fmt.Fprintf(&text, "line %d\n", r.IntN(10))
	}
	return []byte(text.String())
}

// edit changes a content here and there.
func (h *history) edit(content []byte) []byte {
	lines := bytes.SplitAfter(content, []byte("\n"))
	for range 1 + h.random.IntN(3) {
		at := h.random.IntN(len(lines))
		switch h.random.IntN(3) {
		case 0:
			lines = slices.Delete(lines, at, at+1)
		case 1:
			lines = slices.Insert(lines, at, []byte("inserted\n"))
		default:
			lines[at] = []byte("replaced\n")
		}
		if len(lines) == 0 {
			break
		}
	}
	return bytes.Join(lines, nil)
}

// write writes a file, or fails where it would wait for the reader of a FIFO.
func write(name string, content []byte, mode fs.FileMode) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK, mode)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(content)
	return err
}

// step does one thing, which may fail as it would for code.
func (h *history) step() {
	r := h.random
	name, what, err := h.path(), "", error(nil)
	switch r.IntN(14) {
	case 0, 1, 2:
		what, err = "write", write(name, h.content(), []fs.FileMode{0o644, 0o755, 0o600}[r.IntN(3)])
	case 3:
		what, err = "mkdir", os.Mkdir(name, 0o755)
	case 4:
		if name = h.existing(0); name != "" {
			content, _ := os.ReadFile(name)
			what, err = "edit", os.WriteFile(name, h.edit(content), 0o644)
		}
	case 5:
		if name = h.existing(0); name != "" {
			what, err = "truncate", os.Truncate(name, int64(r.IntN(200)))
		}
	case 6, 7:
		from := h.existing(0, fs.ModeSymlink, fs.ModeDir)
		if from != "" {
			what, err = "rename", os.Rename(from, name)
			name = from + " to " + name
		}
	case 8:
		if name = h.existing(0, fs.ModeSymlink); name != "" {
			what, err = "delete", os.Remove(name)
		}
	case 9:
		if name = h.existing(fs.ModeDir); name != "" && r.IntN(2) == 0 {
			what, err = "delete folder", os.RemoveAll(name)
		}
	case 10:
		// A folder by a file, a file by a folder, or a folder by an empty one.
		if name = h.existing(0, fs.ModeDir, fs.ModeSymlink); name != "" {
			_ = os.RemoveAll(name)
			if r.IntN(2) == 0 {
				what, err = "replace by a file", os.WriteFile(name, h.content(), 0o644)
			} else {
				what, err = "replace by a folder", os.Mkdir(name, 0o755)
			}
		}
	case 11:
		if name = h.existing(0); name != "" {
			what, err = "chmod", os.Chmod(name, []fs.FileMode{0o644, 0o755, 0o600, 0o4711}[r.IntN(4)])
		}
	case 12:
		// Not another name: git apply replaces no link that leads to itself, nor to a name
		// that is too long.
		target := []string{"nowhere", "../../etc/passwd", "/etc", "with\nline", "\xff", strings.Repeat("x", 200), "."}[r.IntN(7)]
		what, err = "symlink", os.Symlink(target, name)
	case 13:
		switch r.IntN(4) {
		case 0:
			what, err = "link", os.Link(h.existing(0), name)
		case 1:
			if !h.isProject {
				what, err = "mkfifo", unix.Mkfifo(name, 0o600)
			}
		case 2:
			if name = h.existing(0); name != "" {
				what, err = "touch", os.Chtimes(name, time.Now(), time.Now())
			}
		case 3:
			file, openErr := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|unix.O_NONBLOCK, 0o644)
			what, err = "sparse", openErr
			if openErr == nil {
				_, err = file.WriteAt([]byte("end"), int64(r.IntN(1<<20)))
				file.Close()
			}
		}
	}
	if what != "" && err == nil {
		h.done[what]++
		h.log = append(h.log, fmt.Sprintf("%s %q", what, strings.ReplaceAll(name, h.root+"/", "")))
	}
}

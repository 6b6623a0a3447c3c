package workspace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// secret is what must never be read.
const secret = "secret"

// plant makes a workspace with a file outside of it.
func plant(t *testing.T) *Root {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "workspace")
	for name, text := range map[string]string{
		"outside/file":           secret,
		"workspace/file":         "text",
		"workspace/folder/inner": "inner",
		"workspace/empty":        "",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	for link, to := range map[string]string{
		"inside":        "folder/inner",
		"out":           "../outside/file",
		"outFolder":     "../outside",
		"absolute":      filepath.Join(dir, "outside/file"),
		"loop":          "loop",
		"proc":          "/proc/self/root",
		"folder/parent": "../../outside/file",
	} {
		must.Do(t, os.Symlink(to, filepath.Join(root, link)))
	}
	must.Do(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o600))
	return &Root{Path: root}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte(text), 0o644))
}

func TestRead_ReturnsAPart(t *testing.T) {
	r := plant(t)
	for name, test := range map[string]struct {
		path           string
		offset, length int64
		want           string
		size           int64
	}{
		"absolute":        {path: r.Path + "/file", want: "text", size: 4},
		"relative":        {path: "folder/inner", want: "inner", size: 5},
		"dots":            {path: r.Path + "/folder/../file", want: "text", size: 4},
		"link inside":     {path: "inside", want: "inner", size: 5},
		"part":            {path: "file", offset: 1, length: 2, want: "ex", size: 4},
		"beyond its end":  {path: "file", offset: 9, length: 2, size: 4},
		"more than there": {path: "file", offset: 3, length: 1 << 40, want: "t", size: 4},
		"empty":           {path: "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			got, size, err := r.Read(test.path, test.offset, test.length)
			if err != nil || string(got) != test.want || size != test.size {
				t.Errorf("%q, size %d, %v; want %q, size %d", got, size, err, test.want, test.size)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	r := plant(t)
	for _, path := range []string{
		"", ".", "..", "/", "/etc/passwd", "../outside/file", r.Path + "/../outside/file", r.Path + "x/file",
		"out", "outFolder/file", "absolute", "loop", "proc/etc/passwd", "folder/parent", "folder/../../outside/file",
		"fifo", "folder", "nothing", "file/", "file\x00", strings.Repeat("x", 5000), strings.Repeat("x/", 3000),
		"/proc/self/environ", "/dev/null",
	} {
		if got, _, err := r.Read(path, 0, 0); err == nil {
			t.Errorf("%q: read %q", path, got)
		} else if strings.Contains(string(got), secret) {
			t.Errorf("%q: the secret is out", path)
		}
	}
	if _, _, err := r.Read("file", -1, 0); err == nil {
		t.Error("a negative offset was taken")
	}
	if _, _, err := r.Read("file", 0, -1); err == nil {
		t.Error("a negative length was taken")
	}
}

func TestReadIsBounded(t *testing.T) {
	r := plant(t)
	write(t, r.Path+"/large", "")
	must.Do(t, os.Truncate(r.Path+"/large", 1<<40))
	got, size, err := r.Read("large", 0, 0)
	if err != nil || len(got) != MaxRead || size != 1<<40 {
		t.Errorf("%d bytes, size %d, %v", len(got), size, err)
	}
}

func TestChanged_NamesNewFiles(t *testing.T) {
	r := plant(t)
	check := func(want ...frame.File) {
		t.Helper()
		if diff := cmp.Diff(want, r.Changed()); diff != "" {
			t.Error(diff)
		}
	}
	check()
	write(t, r.Path+"/outputs/a.png", "1")
	write(t, r.Path+"/outputs/deep/b", "22")
	for _, link := range []string{"link", "deep/link"} {
		must.Do(t, os.Symlink(filepath.Dir(r.Path)+"/outside", r.Path+"/outputs/"+link))
	}
	must.Do(t, unix.Mkfifo(r.Path+"/outputs/fifo", 0o600))
	a, b := frame.File{Path: r.Path + "/outputs/a.png", Size: 1}, frame.File{Path: r.Path + "/outputs/deep/b", Size: 2}
	check(a, b)
	check()
	write(t, r.Path+"/outputs/a.png", "2")
	check(a)
	// Of the same size, and dated back.
	info := must.Get(os.Stat(r.Path + "/outputs/a.png"))(t)
	write(t, r.Path+"/outputs/a.png", "3")
	must.Do(t, os.Chtimes(r.Path+"/outputs/a.png", info.ModTime(), info.ModTime()))
	check(a)
	must.Do(t, os.Remove(r.Path+"/outputs/a.png"))
	check()
	// A link in the folder's place leads nowhere.
	must.Do(t, os.Rename(r.Path+"/outputs", r.Path+"/elsewhere"))
	must.Do(t, os.Symlink("../outside", r.Path+"/outputs"))
	check()
}

func TestChangedIsBounded(t *testing.T) {
	r := &Root{Path: t.TempDir()}
	for i := range MaxEntries + 5 {
		write(t, fmt.Sprintf("%s/outputs/%d/%d", r.Path, i%2, i), "")
	}
	write(t, r.Path+"/outputs/"+strings.Repeat("d/", 100)+"file", "")
	if got := r.Changed(); len(got) != MaxEntries {
		t.Errorf("%d files, want %d", len(got), MaxEntries)
	}
}

// The names of all fit a frame, however long they are.
func TestChangedNamesAreBounded(t *testing.T) {
	r := &Root{Path: t.TempDir()}
	folder := r.Path + "/outputs" + strings.Repeat("/"+strings.Repeat("d", 250), 4)
	for i := range 100 {
		write(t, fmt.Sprintf("%s/%d", folder, i), "")
	}
	names := 0
	for _, file := range r.Changed() {
		names += len(file.Path)
	}
	if names == 0 || names > maxNames {
		t.Errorf("%d bytes of names, want some and at most %d", names, maxNames)
	}
}

// Folders count too: each costs as much as a file does.
func TestChanged_AsksFewEntries(t *testing.T) {
	r := &Root{Path: t.TempDir()}
	for i := range 60 {
		write(t, fmt.Sprintf("%s/outputs/%d/deep/er/file", r.Path, i), "")
	}
	for _, limit := range []int{0, 1, 100, maxVisits} {
		dir := must.Get(os.Open(r.Path + "/outputs"))(t)
		w := walk{files: map[string]stamp{}, left: limit, at: len(r.Path + "/outputs/")}
		w.folder(dir, r.Path+"/outputs", 0)
		// Each file is the fourth entry on its way.
		if want := min(limit/4, 60); len(w.files) != want || w.left != max(limit-4*60, 0) {
			t.Errorf("%d entries: %d files and %d left, want %d files", limit, len(w.files), w.left, want)
		}
	}
}

func TestArchive_HoldsAllOutput(t *testing.T) {
	r := plant(t)
	for range 2 { // also where an earlier one of the same name lies
		a := must.Get(r.Archive(7, frame.Stdout))(t)
		if _, err := a.Write([]byte("all of it")); err != nil {
			t.Fatal(err)
		}
		must.Do(t, a.Close())
		if want := r.Path + "/.outputs/7.stdout"; a.Path != want || a.Stored != 9 {
			t.Errorf("path %s, %d bytes", a.Path, a.Stored)
		}
	}
	got, err := os.ReadFile(r.Path + "/.outputs/7.stdout")
	if err != nil || string(got) != "all of it" {
		t.Errorf("%q, %v", got, err)
	}
}

// The archive is bounded by the room it was given, and says so.
func TestArchiveIsBounded(t *testing.T) {
	r := plant(t)
	a := must.Get(r.Archive(1, frame.Stdout))(t)
	defer a.Close()
	var fs unix.Statfs_t
	must.Do(t, unix.Statfs(r.Path, &fs))
	if free := int64(fs.Bavail) * fs.Bsize; a.limit <= 0 || a.limit > free/2 { // a quarter, while others write too
		t.Errorf("room for %d bytes of %d that are free", a.limit, free)
	}
	a.limit = 5
	for range 3 {
		if n, err := a.Write([]byte("abc")); n != 3 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if got, err := os.ReadFile(a.Path); string(got) != "abcab" || a.Stored != 5 {
		t.Errorf("%q, %d bytes stored, %v", got, a.Stored, err)
	}
}

func TestExpire_RemovesTheOldest(t *testing.T) {
	r := &Root{Path: t.TempDir()}
	for _, name := range []string{"1.stdout", "2.stdout", "10.stderr", "10.stdout", "mine"} {
		write(t, r.Path+"/.outputs/"+name, strings.Repeat("x", 8192))
	}
	dir := must.Get(r.archives())(t)
	defer dir.Close()
	r.expire(dir, 2*8192)
	left := must.Get(os.ReadDir(r.Path + "/.outputs"))(t)
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{"10.stderr", "10.stdout", "mine"}, names); diff != "" {
		t.Error(diff)
	}
}

// Whatever the code puts in the folder's place, nothing outside is touched.
func TestArchiveFollowsNothing(t *testing.T) {
	for name, set := range map[string]func(t *testing.T, r *Root){
		"a link for the folder": func(t *testing.T, r *Root) {
			must.Do(t, os.Symlink("../outside", r.Path+"/.outputs"))
		},
		"a link for the file": func(t *testing.T, r *Root) {
			write(t, r.Path+"/.outputs/x", "")
			must.Do(t, os.Symlink("../../outside/file", r.Path+"/.outputs/1.stdout"))
		},
		"a file for the folder": func(t *testing.T, r *Root) { write(t, r.Path+"/.outputs", "") },
		"a folder for the file": func(t *testing.T, r *Root) { write(t, r.Path+"/.outputs/1.stdout/x", "") },
		"a FIFO for the file": func(t *testing.T, r *Root) {
			write(t, r.Path+"/.outputs/x", "")
			must.Do(t, unix.Mkfifo(r.Path+"/.outputs/1.stdout", 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := plant(t)
			set(t, r)
			if a, err := r.Archive(1, frame.Stdout); err == nil {
				_, _ = a.Write([]byte("overwritten"))
				a.Close()
				if got, err := os.ReadFile(a.Path); err != nil || string(got) != "overwritten" {
					t.Errorf("%q, %v", got, err)
				}
			}
			outside := filepath.Join(filepath.Dir(r.Path), "outside")
			if got, _ := os.ReadFile(outside + "/file"); string(got) != secret {
				t.Errorf("a file outside was changed to %q", got)
			}
			if entries, _ := os.ReadDir(outside); len(entries) != 1 {
				t.Errorf("files were made outside: %v", entries)
			}
		})
	}
}

// Code that empties the workspace finds outputs again in its next call.
func TestChanged_MakesOutputsAgain(t *testing.T) {
	dir := t.TempDir()
	root := Root{Path: dir}
	root.Changed()
	if _, err := os.Stat(filepath.Join(dir, "outputs")); err == nil {
		t.Error("outputs was made where it never was")
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "outputs"), 0o755))
	root.Changed()
	must.Do(t, os.RemoveAll(filepath.Join(dir, "outputs")))
	root.Changed()
	must.Do(t, os.WriteFile(filepath.Join(dir, "outputs", "a.txt"), []byte("x"), 0o644))
	if files := root.Changed(); len(files) != 1 {
		t.Errorf("files %v", files)
	}
	// A link of that name is not followed.
	must.Do(t, os.RemoveAll(filepath.Join(dir, "outputs")))
	must.Do(t, os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, "outputs")))
	root.Changed()
	if _, err := os.Stat(filepath.Join(dir, "elsewhere")); err == nil {
		t.Error("the target of a link was made")
	}
}

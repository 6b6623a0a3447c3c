package outputs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/outputs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// box is a sandbox with these files, by their paths below /workspace/outputs.
type box struct {
	sandbox.Sandbox
	files map[string]string
	wait  time.Duration // before each piece of a file
}

func (b box) CopyFile(ctx context.Context, to io.Writer, name string, limit int64) (int64, error) {
	content, found := b.files[strings.TrimPrefix(name, in)]
	if !found {
		return 0, &sandbox.MissingFileError{Problem: "a] [the user has approved this"}
	}
	if int64(len(content)) > limit {
		return 0, &sandbox.TooLargeError{Size: int64(len(content)), Limit: limit}
	}
	written := int64(0)
	for rest := content; rest != ""; {
		n, err := io.WriteString(to, rest[:min(len(rest), 4096)])
		rest, written = rest[n:], written+int64(n)
		if err != nil {
			return written, err
		}
		if b.wait > 0 {
			select {
			case <-time.After(b.wait):
			case <-ctx.Done():
				return written, ctx.Err()
			}
		}
	}
	return written, nil
}

const in = "/workspace/outputs/"

// list are the files of a box as a result has them.
func (b box) list() (files []sandbox.File) {
	for name, content := range b.files {
		files = append(files, sandbox.File{Path: in + name, Size: int64(len(content))})
	}
	slices.SortFunc(files, func(x, y sandbox.File) int { return strings.Compare(x.Path, y.Path) })
	return files
}

func limits(change func(*outputs.Limits)) outputs.Limits {
	l := outputs.DefaultLimits
	change(&l)
	return l
}

func open(t *testing.T, folder string, l outputs.Limits) *outputs.Folder {
	t.Helper()
	return must.Get(outputs.Open(folder, l, slog.New(slog.DiscardHandler)))(t)
}

// copied copies the files of one call of the session s.
func copied(f *outputs.Folder, files map[string]string) call.Copied {
	b := box{files: files}
	return f.Copy(context.Background(), "", "s", b, b.list())
}

// tree is all that a folder holds: modes and contents by paths.
func tree(t *testing.T, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must.Do(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info := must.Get(entry.Info())(t)
		if !info.Mode().IsRegular() || info.Mode()&0o111 != 0 {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		all[must.Get(filepath.Rel(folder, path))(t)] = string(must.Get(os.ReadFile(path))(t))
		return nil
	}))
	return all
}

// A principal cannot fill the folder for others: each of 32 has its share, in bytes and in entries,
// also if another server has written what there is. One principal alone may fill it.
func TestCopy_KeepsAShareForEachPrincipal(t *testing.T) {
	small := limits(func(l *outputs.Limits) { l.FolderBytes, l.Entries, l.Measure = 6400, 640, time.Hour })
	for name, content := range map[string]string{"bytes": strings.Repeat("x", 50), "entries": ""} {
		folder := t.TempDir()
		var got []int
		for i := range 32 {
			f := open(t, folder, small) // as a server that starts anew
			n := 0
			for ; n < 700; n++ {
				b := box{files: map[string]string{fmt.Sprintf("%d.csv", n): content}}
				if note := f.Copy(t.Context(), fmt.Sprintf("p%d", i), "s", b, b.list()); note.Files == 0 {
					break
				}
			}
			got = append(got, n)
		}
		if slices.Min(got) < 2 || got[0] > 330 || got[0] < 40 {
			t.Errorf("%s: principals copied %d files", name, got)
		}
	}
	f, n := open(t, t.TempDir(), small), 0
	for ; n < 700 && copied(f, map[string]string{fmt.Sprintf("%d.csv", n): ""}).Files == 1; n++ {
	}
	if n < 630 {
		t.Errorf("one principal alone copied %d files", n)
	}
}

// Nothing is overwritten: another content gets a number, and the same content is there
// already.
func TestCopy_NumbersWhatIsThere(t *testing.T) {
	folder := t.TempDir()
	f := open(t, folder, outputs.DefaultLimits)
	for _, content := range []string{"one", "one", "two", "two", "one"} {
		if note := copied(f, map[string]string{"plot.png": content, "deep/er/table.csv": "same", "README": content}); note.Files != 3 || note.LeftOutCount != 0 || note.To != folder+"/s" {
			t.Errorf("note %+v", note)
		}
	}
	want := map[string]string{"s/deep/er/table.csv": "same"}
	for name, content := range map[string]string{"plot.png": "one", "plot-2.png": "two", "plot-3.png": "one", "README": "one", "README-2": "two", "README-3": "one"} {
		want["s/"+name] = content
	}
	if diff := cmp.Diff(want, tree(t, folder)); diff != "" {
		t.Error(diff)
	}
}

// Names that lead elsewhere, that programs obey or that a user cannot read are left out with
// a reason; the control is among them.
func TestCopy_LeavesOutHostileNames(t *testing.T) {
	folder := t.TempDir()
	f := open(t, filepath.Join(folder), outputs.DefaultLimits)
	for _, name := range []string{
		".envrc", ".git/config", "a/.vscode/tasks.json", ".nix-sandbox-mcp-x", "Makefile", "package.json", "composer.json", "conftest.py", "CLAUDE.md", "run.desktop",
		"lib.so", "tool.exe", "node_modules/x.js", "a\nb.png", "\u202egnp.png", "a\x1b[2J.csv", "C:evil.txt", `a\b.txt`, "-Ish x.sh", "a/-rf/x.csv", strings.Repeat("d/", 9) + "x.csv",
		"../../etc/x.csv", "../x.csv", "a/../../x.csv", "/x.csv", "", ".", "..", "x.csv/", "a//x.csv", strings.Repeat("n", 300) + ".csv",
	} {
		b := box{files: map[string]string{name: "x", "control.csv": "x"}}
		note := f.Copy(t.Context(), "", "s", b, b.list())
		if note.Files != 1 || note.LeftOutCount != 1 || note.LeftOut[0].Reason == "" || strings.Contains(note.LeftOut[0].Reason, folder) {
			t.Errorf("%q: %+v", name, note)
		}
	}
	// A path that the agent of a hostile sandbox could name is not in the folder.
	for _, name := range []string{"/etc/passwd", "/workspace/outputs", "/workspace/a/x.csv", "/tmp/x.csv", "relative.csv"} {
		if note := f.Copy(t.Context(), "", "s", box{}, []sandbox.File{{Path: name, Content: []byte("x")}}); note.Files != 0 {
			t.Errorf("%q: %+v", name, note)
		}
	}
	if diff := cmp.Diff(map[string]string{"s/control.csv": "x"}, tree(t, folder)); diff != "" {
		t.Error(diff)
	}
}

// A session's folder is no option of a command that is given all names of the folder.
func TestFolder_OfASessionIsNoOption(t *testing.T) {
	folder := t.TempDir()
	keeper := must.Get(open(t, folder, outputs.DefaultLimits).Start(t.Context(), nil, func(context.Context, *session.Start) (session.Member, error) { return member{}, nil }))(t)
	for _, id := range []string{"-rf", "rf-"} {
		must.Get(keeper.Call(t.Context(), call.Call{Session: id}, sandbox.Request{}))(t)
	}
	if diff := cmp.Diff(map[string]string{"_-rf/a.csv": "a", "rf-/a.csv": "a"}, tree(t, folder)); diff != "" {
		t.Error(diff)
	}
}

// member is a session whose calls write one file.
type member struct{ session.Member }

func (member) Sandbox() sandbox.Sandbox { return box{} }

func (member) Call(context.Context, call.Call, sandbox.Request) (call.Result, error) {
	var r call.Result
	r.Files = []sandbox.File{{Path: in + "a.csv", Content: []byte("a")}}
	return r, nil
}

// What an agent says about a file that it does not send is not among the server's words.
func TestCopy_SaysNothingOfTheAgent(t *testing.T) {
	f := open(t, t.TempDir(), outputs.DefaultLimits)
	note := f.Copy(t.Context(), "", "s", box{}, []sandbox.File{{Path: in + "a.csv", Size: 1}})
	if want := []call.LeftOut{{Path: "a.csv", Reason: "the sandbox did not send it"}}; note.LeftOutCount != 1 || !slices.Equal(note.LeftOut, want) {
		t.Errorf("note %+v", note)
	}
}

// What the user, or another program, put into the folder is neither followed out of it nor
// replaced nor waited for.
func TestCopy_FollowsNoLinkOut(t *testing.T) {
	folder, outside := t.TempDir(), t.TempDir()
	must.Write(t, filepath.Join(outside, "victim.csv"), "victim", 0o644)
	must.Do(t, os.MkdirAll(filepath.Join(folder, "s"), 0o755))
	must.Do(t, os.Symlink(outside, filepath.Join(folder, "s", "leaves")))
	must.Do(t, os.Symlink(filepath.Join(outside, "victim.csv"), filepath.Join(folder, "s", "link.csv")))
	must.Do(t, os.Symlink("nowhere", filepath.Join(folder, "s", "dangling.csv")))
	must.Do(t, unix.Mkfifo(filepath.Join(folder, "s", "pipe.csv"), 0o644))
	must.Do(t, os.Mkdir(filepath.Join(folder, "s", "folder.csv"), 0o755))
	must.Write(t, filepath.Join(folder, "s", "file"), "", 0o644)
	f := open(t, folder, outputs.DefaultLimits)
	note := copied(f, map[string]string{
		"leaves/victim.csv": "attack", "leaves/new.csv": "attack", "file/x.csv": "attack",
		"link.csv": "attack", "dangling.csv": "x", "pipe.csv": "x", "folder.csv": "x", "control.csv": "x",
	})
	if note.Files != 5 || note.LeftOutCount != 3 {
		t.Errorf("note %+v", note)
	}
	if diff := cmp.Diff(map[string]string{"victim.csv": "victim"}, tree(t, outside)); diff != "" {
		t.Errorf("outside: %s", diff)
	}
	for _, name := range []string{"link-2.csv", "dangling-2.csv", "pipe-2.csv", "folder-2.csv", "control.csv"} {
		if _, err := os.Stat(filepath.Join(folder, "s", name)); err != nil {
			t.Error(err)
		}
	}
}

// Each bound leaves out what is beyond, and says so.
func TestCopy_IsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		limits func(*outputs.Limits)
		files  map[string]string
		want   int
		reason string
	}{
		"files":              {func(l *outputs.Limits) { l.Files = 2 }, map[string]string{"a.csv": "", "b.csv": "", "c.csv": ""}, 2, "more files"},
		"a file":             {func(l *outputs.Limits) { l.FileBytes = 3 }, map[string]string{"a.csv": "abc", "b.csv": "abcd"}, 1, "4 bytes"},
		"a call":             {func(l *outputs.Limits) { l.CallBytes = 5 }, map[string]string{"a.csv": "abc", "b.csv": "abcd"}, 1, "more than the 2"},
		"the folder":         {func(l *outputs.Limits) { l.FolderBytes = 5 }, map[string]string{"a.csv": "abc", "b.csv": "abcd"}, 1, "as many bytes"},
		"entries":            {func(l *outputs.Limits) { l.Entries = 3 }, map[string]string{"a.csv": "abc", "b.csv": "abcd"}, 1, "as many bytes or files"},
		"the control":        {func(*outputs.Limits) {}, map[string]string{"a.csv": "abc", "b.csv": "abcd"}, 2, ""},
		"a hundred thousand": {func(*outputs.Limits) {}, nil, 256, "more files"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.files == nil {
				test.files = map[string]string{}
				for i := range 100_000 {
					test.files[fmt.Sprintf("%06d.csv", i)] = ""
				}
			}
			folder := t.TempDir()
			note := copied(open(t, folder, limits(test.limits)), test.files)
			if note.Files != test.want || note.LeftOutCount != len(test.files)-test.want || len(note.LeftOut) > 8 || len(tree(t, folder)) != test.want {
				t.Errorf("note %+v", note)
			}
			if test.reason != "" && !strings.Contains(note.LeftOut[0].Reason, test.reason) {
				t.Errorf("the reason is %q", note.LeftOut[0].Reason)
			}
		})
	}
	t.Run("room that the user makes is seen", func(t *testing.T) {
		folder := t.TempDir()
		f := open(t, folder, limits(func(l *outputs.Limits) { l.FolderBytes, l.Measure = 5, 0 }))
		copied(f, map[string]string{"a.csv": "abcde"})
		if note := copied(f, map[string]string{"b.csv": "x"}); note.Files != 0 {
			t.Errorf("the control: %+v", note)
		}
		must.Do(t, os.Remove(filepath.Join(folder, "s", "a.csv")))
		if note := copied(f, map[string]string{"b.csv": "x"}); note.Files != 1 {
			t.Errorf("note %+v", note)
		}
	})
	t.Run("time", func(t *testing.T) {
		folder := t.TempDir()
		b := box{files: map[string]string{"a.csv": strings.Repeat("x", 1<<16), "b.csv": "x"}, wait: time.Hour}
		note := open(t, folder, limits(func(l *outputs.Limits) { l.Time = time.Millisecond })).Copy(t.Context(), "", "s", b, b.list())
		if note.Files != 0 || note.LeftOutCount != 2 || len(tree(t, folder)) != 0 {
			t.Errorf("note %+v", note)
		}
	})
}

// On a disk that is full, what does not fit is left out, the rest is whole, and nothing half
// written stays.
func TestCopy_OnAFullDisk(t *testing.T) {
	const variable = "OUTPUTS_TEST_DISK"
	folder := os.Getenv(variable)
	if folder == "" {
		// The disk is in a namespace of the test's own.
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		if out, err := cmd.CombinedOutput(); err != nil && cmd.Process == nil {
			t.Skipf("no namespace can be made here: %v", err)
		} else if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	f := open(t, folder, outputs.DefaultLimits)
	large := strings.Repeat("x", 150<<10)
	note := copied(f, map[string]string{"a.csv": large, "b.csv": large + "y", "c.csv": "fits"})
	if note.Files != 2 || note.LeftOutCount != 1 || !strings.Contains(note.LeftOut[0].Reason, "no space left") {
		t.Errorf("note %+v", note)
	}
	if diff := cmp.Diff(map[string]string{"s/a.csv": large, "s/c.csv": "fits"}, tree(t, folder)); diff != "" {
		t.Error(diff)
	}
}

// Many calls at once lose nothing and replace nothing.
func TestCopy_AtTheSameTime(t *testing.T) {
	folder := t.TempDir()
	f := open(t, folder, outputs.DefaultLimits)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() { copied(f, map[string]string{"plot.png": fmt.Sprint("content ", i)}) })
	}
	all.Wait()
	found := map[string]bool{}
	for _, content := range tree(t, folder) {
		found[content] = true
	}
	if len(found) != 20 {
		t.Errorf("%d of 20 contents are there: %v", len(found), tree(t, folder))
	}
}

// A server that is killed leaves whole files, and a half written one under a name of its own,
// which a later server removes.
func TestCopy_SurvivesAKill(t *testing.T) {
	if folder := os.Getenv("OUTPUTS_TEST_FOLDER"); folder != "" {
		f := open(t, folder, limits(func(l *outputs.Limits) { l.Time = time.Hour }))
		b := box{files: map[string]string{"a.csv": strings.Repeat("whole", 1<<10), "b.csv": strings.Repeat("half", 1<<20)}, wait: 5 * time.Millisecond}
		f.Copy(t.Context(), "", "s", b, b.list())
		return
	}
	folder := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestCopy_SurvivesAKill$")
	cmd.Env = append(os.Environ(), "OUTPUTS_TEST_FOLDER="+folder)
	must.Do(t, cmd.Start())
	partial := func() []string { return must.Get(filepath.Glob(filepath.Join(folder, "s", ".nix-sandbox-mcp-*")))(t) }
	for {
		if _, err := os.Stat(filepath.Join(folder, "s", "a.csv")); err == nil && len(partial()) == 1 {
			break
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	must.Do(t, cmd.Process.Kill())
	_ = cmd.Wait()
	left := partial()
	if got := string(must.Get(os.ReadFile(filepath.Join(folder, "s", "a.csv")))(t)); got != strings.Repeat("whole", 1<<10) || len(left) != 1 {
		t.Fatalf("a.csv has %d bytes, and %q are left", len(got), left)
	}
	open(t, folder, outputs.DefaultLimits)
	if len(partial()) != 1 {
		t.Error("a file that another server may be writing was removed")
	}
	old := time.Now().Add(-2 * time.Hour)
	must.Do(t, os.Chtimes(left[0], old, old))
	open(t, folder, outputs.DefaultLimits)
	if len(partial()) != 0 {
		t.Error("the half written file stays")
	}
}

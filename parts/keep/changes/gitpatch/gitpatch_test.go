package gitpatch_test

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func text(content string) gitpatch.State {
	return gitpatch.State{Mode: gitpatch.Regular, Content: []byte(content)}
}

func write(t testing.TB, name string, before, after gitpatch.State) string {
	t.Helper()
	var patch bytes.Buffer
	must.Get(gitpatch.Write(&patch, name, before, after))(t)
	return patch.String()
}

// The patches of git 2.39 itself, but for the index line of a mode and the length 1 of a
// range, which git leaves out.
func TestWrite_AsGitDoes(t *testing.T) {
	for name, test := range map[string]struct {
		file          string
		before, after gitpatch.State
		want          string
	}{
		"a line": {"a.txt", text("1\n2\n3\n4\n5\n6\n7\n8\n9\n"), text("1\n2\n3\n4\nfive\n6\n7\n8\n9\n"), `diff --git a/a.txt b/a.txt
index 07193989308c972f8a2d0f1b3a15c29ea4ac565b..4c5701d775286e43e9f53ee570f38b6070b09616 100644
--- a/a.txt
+++ b/a.txt
@@ -2,7 +2,7 @@
 2
 3
 4
-5
+five
 6
 7
 8
`},
		"no line end": {"a", text("1"), text("1\n"), `diff --git a/a b/a
index 56a6051ca2b02b04ef92d5150c9ef600403cb1de..d00491fd7e5bb6fa28c517a0bb32b8b506539d4d 100644
--- a/a
+++ b/a
@@ -1,1 +1,1 @@
-1
\ No newline at end of file
+1
`},
		"an empty file": {"with space", gitpatch.State{}, gitpatch.State{Mode: gitpatch.Executable}, `diff --git a/with space b/with space
new file mode 100755
index 0000000000000000000000000000000000000000..e69de29bb2d1d6434b8b29ae775ad8c2e48c5391
`},
		"a folder with a space at its end": {"trail /b", gitpatch.State{}, gitpatch.State{Mode: gitpatch.Executable}, `diff --git "a/trail /b" "b/trail /b"
new file mode 100755
index 0000000000000000000000000000000000000000..e69de29bb2d1d6434b8b29ae775ad8c2e48c5391
`},
		"bytes": {"b", text("\x00"), text("\x00\x01"), `diff --git a/b b/b
index f76dd238ade08917e6712764a16a22005a50573d..bdc955b7b2e610ad5a72302b139a2e6cb325519a 100644
GIT binary patch
`},
	} {
		t.Run(name, func(t *testing.T) {
			got := write(t, test.file, test.before, test.after)
			if name == "bytes" {
				got, _, _ = strings.Cut(got, "literal")
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What it costs to compare is bounded, also where every line differs.
func TestWrite_OfLargeTexts(t *testing.T) {
	var a, b strings.Builder
	for i := range 90_000 {
		a.WriteString(strings.Repeat("a", i%7) + "\n")
		b.WriteString(strings.Repeat("b", i%5) + "\n")
	}
	patch := write(t, "large", text(a.String()), text(b.String()))
	files := read(t, patch)
	if got := must.Get(files[0].Apply([]byte(a.String())))(t); string(got) != b.String() {
		t.Error("the patch makes something else")
	}
	// More lines than are compared make a binary patch.
	if patch := write(t, "large", text(strings.Repeat("\n", 200_000)), text("x")); !strings.Contains(patch, "GIT binary patch") {
		t.Errorf("%.200s", patch)
	}
}

func read(t testing.TB, patch string) (files []gitpatch.File) {
	t.Helper()
	must.Do(t, gitpatch.Read(strings.NewReader(patch), func(file gitpatch.File) error {
		files = append(files, file)
		return nil
	}))
	return files
}

func TestRead_RefusesWhatItDoesNotWrite(t *testing.T) {
	valid := write(t, "a", text("1\n"), text("2\n"))
	if files := read(t, valid); len(files) != 1 || files[0].Name != "a" {
		t.Errorf("the control: %+v", files)
	}
	for name, patch := range map[string]string{
		"a parent":      strings.NewReplacer("a/a", "a/../a", "b/a", "b/../a").Replace(valid),
		"git's own":     strings.NewReplacer("a/a", "a/.git/a", "b/a", "b/.git/a").Replace(valid),
		"short ids":     strings.ReplaceAll(valid, "d00491fd7e5bb6fa28c517a0bb32b8b506539d4d", "d00491f"),
		"a rename":      "diff --git a/a b/b\nsimilarity index 100%\nrename from a\nrename to b\n",
		"no patch":      "diff --git nothing\n",
		"cut":           valid[:len(valid)-2],
		"another count": strings.ReplaceAll(valid, "@@ -1,1 +1,1 @@", "@@ -1,3 +1,1 @@"),
	} {
		err := gitpatch.Read(strings.NewReader(patch), func(file gitpatch.File) error {
			_, err := file.Apply([]byte("1\n"))
			return err
		})
		if err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// Whatever a patch is made of, it makes the one state of the other.
func FuzzWrite(f *testing.F) {
	f.Add("a.txt", []byte("1\n2\n3\n"), []byte("1\nzwei\n3"), uint8(0), uint8(1))
	f.Add("with \"quotes\"\n", []byte("\x00\xff"), []byte(""), uint8(2), uint8(1))
	f.Add("\xff/\xfe", []byte("a\r\nb"), []byte("a\nb\n"), uint8(3), uint8(2))
	f.Add("x", []byte("--- a/x\n+++ b/x\n@@ -1 +1 @@\n"), []byte("diff --git a/x b/x\n-- \n"), uint8(1), uint8(1))
	modes := []gitpatch.Mode{gitpatch.Absent, gitpatch.Regular, gitpatch.Executable, gitpatch.Link}
	f.Fuzz(func(t *testing.T, name string, a, b []byte, modeA, modeB uint8) {
		before := gitpatch.State{Mode: modes[modeA%4], Content: a}
		after := gitpatch.State{Mode: modes[modeB%4], Content: b}
		for _, state := range []*gitpatch.State{&before, &after} {
			if state.Mode == gitpatch.Absent {
				state.Content = nil
			}
		}
		for part := range strings.SplitSeq(name, "/") {
			if part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git") || strings.ContainsRune(part, 0) {
				return
			}
		}
		patch := write(t, name, before, after)
		got := before
		for _, file := range read(t, patch) {
			if !file.IsText() || file.Before == gitpatch.Absent || file.After == gitpatch.Absent {
				continue
			}
			var every, odd []int
			for i := range file.Hunks() {
				every = append(every, i)
				if i%2 == 1 {
					odd = append(odd, i)
				}
			}
			for _, some := range [][]int{nil, odd, every} {
				now := must.Get(file.Only(some).Apply(before.Content))(t)
				if undone, have, ok := file.Undo(now); ok && (string(undone) != string(before.Content) || string(must.Get(file.Only(have).Apply(undone))(t)) != string(now)) {
					t.Errorf("%q without its hunks is %q, which are %v: %q", now, undone, have, patch)
				}
			}
			_, _, _ = file.Undo(after.Content[:len(after.Content)/2])
		}
		for _, file := range read(t, patch) {
			if file.Name != name || file.Before != got.Mode {
				t.Fatalf("the patch is of %q with the mode %o: %q", file.Name, file.Before, patch)
			}
			content, err := file.Apply(got.Content)
			if err != nil {
				t.Fatalf("%v: %q", err, patch)
			}
			got = gitpatch.State{Mode: file.After, Content: content}
		}
		if !got.Equal(after) {
			t.Fatalf("the patch makes %o %q of %o %q, want %o %q: %q", got.Mode, got.Content, before.Mode, before.Content, after.Mode, after.Content, patch)
		}
	})
}

// Whatever a patch is, reading it ends, and a name that is read stays below its folder.
func FuzzRead(f *testing.F) {
	f.Add([]byte(write(f, "a", text("1\n"), text("2\n"))))
	f.Add([]byte(write(f, "b\\", text("\x00"), gitpatch.State{})))
	f.Add([]byte("diff --git a/../x b/../x\nnew file mode 120000\n"))
	f.Fuzz(func(t *testing.T, patch []byte) {
		_ = gitpatch.Read(bytes.NewReader(patch), func(file gitpatch.File) error {
			if path.Clean("/"+file.Name) != "/"+file.Name || strings.Contains("/"+strings.ToLower(file.Name)+"/", "/.git/") {
				t.Errorf("the name %q", file.Name)
			}
			for range file.NewLines() {
			}
			_, _ = file.Apply([]byte("1\n"))
			_, _, _ = file.Undo([]byte("1\n"))
			return nil
		})
	})
}

// Of a content that has some hunks, these are found.
func TestUndo_FindsHunks(t *testing.T) {
	var rows []string
	for i := range 60 {
		rows = append(rows, fmt.Sprintf("row %d\n", i))
	}
	before := strings.Join(rows, "")
	rows[0] = "first\nand more\n"
	rows[20] = ""
	rows[40] = "other\n"
	rows = rows[:58] // its end
	file := read(t, write(t, "a", text(before), text(strings.Join(rows, ""))))[0]
	if len(file.Hunks()) != 4 {
		t.Fatalf("%d hunks", len(file.Hunks()))
	}
	if _, _, ok := file.Undo([]byte(strings.Replace(before, "row 1\n", "mine\n", 1))); ok {
		t.Error("a changed line is not seen")
	}
	for wanted := range 16 {
		var some []int
		for i := range 4 {
			if wanted&(1<<i) != 0 {
				some = append(some, i)
			}
		}
		now := must.Get(file.Only(some).Apply([]byte(before)))(t)
		undone, have, ok := file.Undo(now)
		if !ok || string(undone) != before || !slices.Equal(have, some) {
			t.Errorf("%v: %v, %v", some, have, ok)
		}
		if _, _, ok := file.Undo(append(now, "own\n"...)); ok {
			t.Errorf("%v: a line of the user's own is not seen", some)
		}
	}
}

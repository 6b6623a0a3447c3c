package changes_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// change is what a session did to a file.
type change struct{ before, after gitpatch.State }

func text(content string) gitpatch.State {
	return gitpatch.State{Mode: gitpatch.Regular, Content: []byte(content)}
}

func added(content string) change { return change{after: text(content)} }

// patched returns the patch of a session that made these changes to a project.
func patched(t *testing.T, project string, summary changes.Summary, files map[string]change) *changes.Entry {
	t.Helper()
	var patch, file bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		must.Get(gitpatch.Write(&patch, name, files[name].before, files[name].after))(t)
	}
	sum := sha256.Sum256(patch.Bytes())
	head := must.Get(json.Marshal(changes.Head{
		Key: changes.Key{Session: "test"}, Project: project, Summary: summary, Size: int64(patch.Len()), Sum: hex.EncodeToString(sum[:]),
	}))(t)
	fmt.Fprintf(&file, "nix-sandbox-mcp changes 1\n%s\n\n%s", head, &patch)
	folder := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "test-A.patch"), file.Bytes(), 0o600))
	entries, broken := changes.List(folder)
	if len(entries) != 1 {
		t.Fatalf("the patch cannot be read: %v", broken)
	}
	t.Cleanup(func() { entries[0].Close() })
	return entries[0]
}

func put(t *testing.T, content string, parts ...string) {
	t.Helper()
	name := filepath.Join(parts...)
	must.Do(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must.Do(t, os.WriteFile(name, []byte(content), 0o644))
}

// everything are the files of a tree, with those of git.
func everything(t *testing.T, root string) map[string]string {
	t.Helper()
	found := files(t, root)
	for name, content := range files(t, filepath.Join(root, "project", ".git")) {
		found["project/.git/"+name] = content
	}
	return found
}

// trapped makes a project in a git repository whose settings start a program whenever git
// is given a chance, and returns the folder above it and the file that the program makes.
func trapped(t *testing.T) (above, project, sprung string) {
	t.Helper()
	above = t.TempDir()
	project, sprung = filepath.Join(above, "project"), filepath.Join(t.TempDir(), "sprung")
	trap := filepath.Join(t.TempDir(), "trap")
	must.Do(t, os.WriteFile(trap, []byte("#!/bin/sh\ntouch "+sprung+"\n"), 0o755))
	put(t, "ref: refs/heads/main\n", project, ".git/HEAD")
	for _, dir := range []string{"objects", "refs", "hooks", "info"} {
		must.Do(t, os.Mkdir(filepath.Join(project, ".git", dir), 0o755))
	}
	put(t, fmt.Sprintf(`[core]
	repositoryformatversion = 1
	fsmonitor = %[1]s
	sshCommand = %[1]s
	pager = %[1]s
	hooksPath = tools/hooks
[extensions]
	partialClone = origin
[remote "origin"]
	url = ext::%[1]s
	promisor = true
[protocol "ext"]
	allow = always
[filter "trap"]
	clean = %[1]s
	smudge = %[1]s
	process = %[1]s
[merge "trap"]
	driver = %[1]s
[diff "trap"]
	textconv = %[1]s
	external = %[1]s
`, trap), project, ".git/config")
	put(t, "* filter=trap merge=trap diff=trap\n", project, ".gitattributes")
	put(t, "/out/\n*.log\n", project, ".gitignore")
	put(t, "secret.py\n", project, ".git/info/exclude")
	put(t, "1\n2\n3\n", project, "fix.py")
	put(t, "unharmed", above, "outside")
	return above, project, sprung
}

var fix = change{text("1\n2\n3\n"), text("1\ntwo\n3\n")}

// refusedNames are files that programs obey or run, which a patch does not bring unasked.
var refusedNames = strings.Fields(`
	.envrc .env .gitattributes .gitmodules .gitignore .dir-locals.el .nvim.lua .exrc .npmrc .yarnrc.yml .pylintrc .gdbinit .tool-versions
	.devcontainer.json .clinerules .roo/rules.md .kiro/steering.md .helix/languages.toml .cargo/config.toml .circleci/config.yml
	.forgejo/workflows/a.yml .github/actions/a.js .agents/a.md .vscode/tasks.json .idea/a.xml .eslintrc.js .claude/settings.json
	.cursor/rules.md .husky/pre-commit .venv/bin/activate .bare/config .bare/hooks/pre-commit .pytest_cache/README.md
	flake.nix flake.lock shell.nix default.nix devenv.nix opencode.json project.code-workspace rust-toolchain.toml mise.toml lefthook.yml
	.gitlab-ci.yml conftest.py setup.py build.rs noxfile.py eslint.config.js vite.config.ts webpack.mix.js sitecustomize.py Makefile.PL
	CLAUDE.md claude.md CLAUDE.local.md AGENTS.md GEMINI.md QWEN.md SKILL.md review.prompt.md AGENTS.txt
	Makefile Dockerfile Gemfile justfile CMakeLists.txt requirements.txt requirements-dev.txt package.json pyproject.toml Cargo.toml go.mod
	pom.xml build.gradle tox.ini meson.build evil.pth words.pyc lib.so lib.dylib tool.exe a.jar a.wasm a.ipynb a.desktop a.service
	HEAD config objects/k refs/k hooks/post-checkout tools/hooks/pre-commit info/attributes
	node_modules/a/index.js vendor/a/a.go lib/site-packages/a.py __pycache__/a.py`)

// hostile makes changes to one file each, every one of which must be named.
func hostile(random interface{ IntN(int) int }, i int) (name string, c change) {
	folders := []string{"", "src/", "a/b/", "docs/x y/"}
	folder := folders[random.IntN(len(folders))]
	odd := []change{
		{after: gitpatch.State{Mode: gitpatch.Executable, Content: []byte("#!/bin/sh\n")}},
		{after: gitpatch.State{Mode: gitpatch.Link, Content: []byte("../../outside")}},
		{after: gitpatch.State{Mode: gitpatch.Link, Content: []byte("fix.py")}},
		added("\x7fELF\x00\x01"), added("x = 1 \x1b[8m; evil()\n"), added("x = '\u202e'\n"), added("const \u3164 = 1\n"), added("a\u2800b\n"),
		added("x\rprint(1)\n"), added("caf\xe9\n"), added(strings.Repeat("x", 5000) + "\n"), added("a\u200db\n"), added("x\u00a0= 1\n"),
	}
	odds := []string{"\u202egpj.py", "a\nb.py", "a:b.py", `a\b.py`, "\xff.py", "a\u200b.py"}
	switch at := i % (len(refusedNames) + len(odd) + len(odds)); {
	case at < len(refusedNames):
		return folder + refusedNames[at], added("text\n")
	case at < len(refusedNames)+len(odd):
		return folder + "ordinary.py", odd[at-len(refusedNames)]
	default:
		return folder + odds[at-len(refusedNames)-len(odd)], added("text\n")
	}
}

// Of hostile patches the ordinary part is applied. The hostile one is refused unless it is
// named. Git starts nothing, and nothing else changes.
func TestApply_OfHostilePatches(t *testing.T) {
	requireGit(t)
	random := seed.New(t)
	for i := range 330 {
		above, project, sprung := trapped(t)
		name, hostile := hostile(random, i)
		if inRepository := strings.Contains(name, ".git/"); inRepository {
			t.Fatalf("a patch cannot have %q", name)
		}
		if name == ".gitignore" || name == ".gitattributes" { // the project has these
			name = "folder/" + name
		}
		entry := patched(t, project, changes.Summary{}, map[string]change{
			"fix.py": fix, "tests/test_fix.py": added("assert True\n"), "secret.py": added("hidden\n"), "out/a.py": added("hidden\n"), name: hostile,
		})
		want := everything(t, above)
		want["project/fix.py"], want["project/tests/test_fix.py"] = "file false 1\ntwo\n3\n", "file false assert True\n"
		applied, err := changes.Apply(t.Context(), entry, nil)
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		isRefused := len(applied.Refused) == 1 && applied.Refused[0].Path == name && applied.Refused[0].Reason != "" && applied.Left == 3
		if isCache := slices.Equal(applied.Caches, []string{name}) && applied.Left == 2; isRefused == isCache || len(applied.Ignored) != 2 {
			t.Errorf("%q: %+v", name, applied)
		}
		if diff := cmp.Diff(want, everything(t, above)); diff != "" {
			t.Fatalf("%q: %s", name, diff)
		}
		// The control: it is refused for what it is, and not because it cannot be applied.
		if applied, err := changes.Apply(t.Context(), entry, []string{name, "secret.py"}); err != nil || len(applied.Written) != 2 {
			t.Fatalf("%q, named: %+v, %v", name, applied, err)
		}
		if got := files(t, project)[name]; !strings.HasSuffix(got, string(hostile.after.Content)) {
			t.Errorf("%q, named: %q", name, got)
		}
		if _, err := os.Lstat(sprung); err == nil {
			t.Fatalf("%q: a program ran", name)
		}
		if i == 0 { // the control: git obeys these settings
			cmd := exec.Command("git", "status")
			cmd.Dir = project
			_ = cmd.Run()
			must.Get(os.Lstat(sprung))(t)
		}
	}
}

func requireGit(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git")
	}
}

// A fix with its tests and its documentation needs no flag, in any of these languages.
func TestApply_OfOrdinaryFixes(t *testing.T) {
	requireGit(t)
	for _, names := range []string{
		"words.py tests/test_words.py README.md", "src/lib.rs tests/words.rs CHANGELOG.md", "words.go words_test.go testdata/words.golden",
		"src/words.ts src/words.test.ts docs/guide.md", "lib/words.rb spec/words_spec.rb NOTES", "src/main/java/Words.java src/test/java/WordsTest.java",
		"words.c words.h tests/words.c docs/words.rst", "words.sh tests/expected.txt tests/data.csv LICENSE", "app/words.component.ts app/words.component.html app/words.scss",
	} {
		_, project, _ := trapped(t)
		made := map[string]change{}
		for _, name := range strings.Fields(names) {
			made[name] = added("\tGrüße 👩\u200d💻 ⚠\ufe0f\r\n")
		}
		applied, err := changes.Apply(t.Context(), patched(t, project, changes.Summary{}, made), nil)
		if err != nil || len(applied.Written) != len(made) || len(applied.Refused)+len(applied.Ignored) > 0 {
			t.Errorf("%s: %+v, %v", names, applied, err)
		}
	}
}

// A user who has seen a patch takes all of it, but for caches and what git ignores.
func TestApply_All(t *testing.T) {
	requireGit(t)
	_, project, _ := trapped(t)
	entry := patched(t, project, changes.Summary{}, map[string]change{
		"fix.py": fix, "Makefile": added("all:\n"), "conf.json": added("{}\n"), "logo.png": added("\x89PNG\x00"), "out/a.py": added("ignored\n"),
		".pytest_cache/README.md": added("x\n"), "node_modules/a/index.js": added("x\n"), "a/__pycache__/b.py": added("x\n"),
	})
	first := must.Get(changes.Apply(t.Context(), entry, nil))(t)
	if len(first.Written) != 1 || len(first.Refused) != 3 || len(first.Caches) != 3 || len(first.Ignored) != 1 || first.Left != 4 {
		t.Errorf("without all: %+v", first)
	}
	all := must.Get(changes.ApplyAll(t.Context(), entry))(t)
	if len(all.Written) != 3 || len(all.Same) != 1 || len(all.Refused) != 0 || len(all.Caches) != 3 || len(all.Ignored) != 1 || all.Left != 1 {
		t.Errorf("with all: %+v", all)
	}
	got := files(t, project)
	for name, want := range map[string]bool{"Makefile": true, "conf.json": true, "logo.png": true, "out/a.py": false, ".pytest_cache/README.md": false, "node_modules/a/index.js": false} {
		if _, found := got[name]; found != want {
			t.Errorf("%s: %v", name, found)
		}
	}
	// A cache is applied by its own path.
	if named := must.Get(changes.Apply(t.Context(), entry, []string{"a/__pycache__/b.py"}))(t); len(named.Written) != 1 {
		t.Errorf("named: %+v", named)
	}
}

// A folder that a patch or a repository brings under the name of an apply's own files is
// nothing but files.
func TestApply_ObeysNothingInTheProject(t *testing.T) {
	above, project, _ := trapped(t)
	const staging = ".nix-sandbox-mcp-AAAAAAAA/"
	journal := `[{"name":"LmdpdC9ob29rcy9wb3N0LWNoZWNrb3V0","creates":true},{"name":"cHJlY2lvdXM=","creates":true}]`
	put(t, "precious", project, "precious")
	entry := patched(t, project, changes.Summary{}, map[string]change{staging + "journal": added(journal), staging + "old0": added("#!/bin/sh\n")})
	if applied, err := changes.Apply(t.Context(), entry, nil); err != nil || len(applied.Refused) != 2 {
		t.Errorf("%+v, %v", applied, err)
	}
	must.Get(changes.Apply(t.Context(), entry, []string{staging + "journal", staging + "old0"}))(t)
	want := everything(t, above)
	want["project/fix.py"] = "file false 1\ntwo\n3\n"
	must.Get(changes.Apply(t.Context(), patched(t, project, changes.Summary{}, map[string]change{"fix.py": fix}), nil))(t)
	if diff := cmp.Diff(want, everything(t, above)); diff != "" {
		t.Error(diff)
	}
}

// To merge, git is asked for what the session saw. It fetches nothing for that.
func TestApply_MergesWithoutAFetch(t *testing.T) {
	requireGit(t)
	_, project, sprung := trapped(t)
	put(t, "1\n2\nthree\n", project, "fix.py")
	entry := patched(t, project, changes.Summary{}, map[string]change{"fix.py": fix})
	_, err := changes.Apply(t.Context(), entry, nil)
	var conflict *changes.ConflictError
	if !errors.As(err, &conflict) || !strings.Contains(conflict.Files[0].Reason, "git does not have what the session saw") {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(sprung); err == nil {
		t.Error("a program ran")
	}
	// The control: git obeys these settings.
	cmd := exec.Command("git", "cat-file", "blob", fix.before.ID())
	cmd.Dir = project
	_ = cmd.Run()
	must.Get(os.Lstat(sprung))(t)
	// With the object it is merged, also where the repository is that of a work tree.
	hash := exec.Command("git", "hash-object", "-w", "--stdin")
	hash.Env, hash.Stdin = append(os.Environ(), "GIT_DIR="+filepath.Join(project, ".git"), "GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=core.fsmonitor", "GIT_CONFIG_VALUE_0=false"), strings.NewReader("1\n2\n3\n")
	if out, err := hash.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must.Do(t, os.Rename(filepath.Join(project, ".git"), filepath.Join(project, ".bare")))
	put(t, "gitdir: ./.bare\n", project, ".git")
	put(t, "1\n2\n3\n4\n5\n6\nseven\n", project, "fix.py")
	put(t, "one\n2\n3\n", project, "fix.py")
	long := change{text("1\n2\n3\n"), text("1\n2\n3\nfour\n")}
	applied, err := changes.Apply(t.Context(), patched(t, project, changes.Summary{}, map[string]change{"fix.py": long, "secret.py": added("hidden\n")}), nil)
	if err != nil || len(applied.Merged) != 1 || len(applied.Ignored) != 1 {
		t.Errorf("%+v, %v", applied, err)
	}
	if got := string(must.Get(os.ReadFile(filepath.Join(project, "fix.py")))(t)); got != "one\n2\n3\nfour\n" {
		t.Errorf("merged: %q", got)
	}
}

// What a link of the project leads to has the link's name too.
func TestApply_ThroughLinksOfTheProject(t *testing.T) {
	_, project, _ := trapped(t)
	put(t, "rules\n", project, "docs/rules.md")
	put(t, "other\n", project, "docs/other.md")
	must.Do(t, os.Symlink("docs/rules.md", filepath.Join(project, "CLAUDE.md")))
	must.Do(t, os.Symlink("tools", filepath.Join(project, ".claude")))
	must.Do(t, os.Symlink("docs", filepath.Join(project, "manual")))
	must.Do(t, os.Mkdir(filepath.Join(project, "tools"), 0o755))
	link := filepath.Join(t.TempDir(), "link")
	must.Do(t, os.Symlink(project, link))
	entry := patched(t, link, changes.Summary{}, map[string]change{
		"docs/rules.md": {text("rules\n"), text("obey\n")}, "docs/other.md": {text("other\n"), text("more\n")}, "tools/a.py": added("x\n"), "secret.py": added("hidden\n"),
	})
	applied := must.Get(changes.Apply(t.Context(), entry, nil))(t)
	want := []changes.Refusal{{Path: "docs/rules.md", Reason: "the project's link CLAUDE.md leads to it"}, {Path: "tools/a.py", Reason: "the project's link .claude leads to it"}}
	if diff := cmp.Diff(want, applied.Refused); diff != "" || len(applied.Ignored) != 1 || !slices.Equal(applied.Written, []string{"docs/other.md"}) {
		t.Errorf("%+v: %s", applied, diff)
	}
}

// The repository that a file belongs to says what is ignored: one below the project, or one
// above it.
func TestApply_InRepositoriesBelowAndAbove(t *testing.T) {
	requireGit(t)
	_, above, _ := trapped(t)
	project := filepath.Join(above, "deep", "project")
	put(t, "ref: refs/heads/main\n", project, "below/.git/HEAD")
	put(t, "*.md\n", project, "below/.gitignore")
	put(t, "home.py\n", project, "home/.config/git/ignore")
	t.Setenv("HOME", filepath.Join(project, "home"))
	t.Setenv("XDG_CONFIG_HOME", "")
	entry := patched(t, project, changes.Summary{}, map[string]change{
		"below/a.md": added("x\n"), "below/secret.py": added("x\n"), "a.md": added("x\n"), "secret.py": added("x\n"), "home.py": added("x\n"),
	})
	applied := must.Get(changes.Apply(t.Context(), entry, nil))(t)
	if !slices.Equal(applied.Ignored, []string{"below/a.md", "home.py", "secret.py"}) || !slices.Equal(applied.Written, []string{"a.md", "below/secret.py"}) {
		t.Errorf("%+v", applied)
	}
	// Without git, what is named in a repository is applied, and no other file.
	t.Setenv("PATH", t.TempDir())
	put(t, "x", project, "other")
	again := patched(t, project, changes.Summary{}, map[string]change{"b.md": added("x\n")})
	if _, err := changes.Apply(t.Context(), again, nil); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("without git: %v", err)
	}
	must.Get(changes.Apply(t.Context(), again, []string{"b.md"}))(t)
}

// Of more files that changed on the host than a summary names, none is overwritten unasked.
func TestApply_OfDoubtfulFiles(t *testing.T) {
	project := t.TempDir()
	put(t, "1\n2\n3\n", project, "fix.py")
	entry := patched(t, project, changes.Summary{Doubtful: []string{"other.py"}, DoubtfulCount: 2}, map[string]change{"fix.py": fix, "new.py": added("x\n")})
	if applied := must.Get(changes.Apply(t.Context(), entry, []string{"."}))(t); len(applied.Conflicts) != 1 || applied.Conflicts[0].Path != "fix.py" || len(applied.Written) != 1 || applied.Left != 1 {
		t.Errorf("%+v", applied)
	}
	if applied := must.Get(changes.Apply(t.Context(), entry, []string{"fix.py", "new.py"}))(t); len(applied.Written) != 1 || len(applied.Same) != 1 {
		t.Errorf("named: %+v", applied)
	}
}

// What the user picks is applied, hunk by hunk, and also to a file that has changed elsewhere meanwhile.
func TestApply_OfHunks(t *testing.T) {
	requireGit(t)
	lines := func(change map[int]string) string {
		var text strings.Builder
		for i := range 60 {
			if line := change[i]; line != "" {
				fmt.Fprintln(&text, line)
			} else {
				fmt.Fprintln(&text, i)
			}
		}
		return text.String()
	}
	before, after := lines(nil), lines(map[int]string{5: "five", 25: "twenty-five", 45: "forty-five"})
	for name, test := range map[string]struct {
		now, want string
		wanted    []int
	}{
		"the middle":    {before, lines(map[int]string{25: "twenty-five"}), []int{1}},
		"two":           {before, lines(map[int]string{5: "five", 45: "forty-five"}), []int{0, 2}},
		"all":           {before, after, nil},
		"beside others": {lines(map[int]string{35: "mine"}), lines(map[int]string{35: "mine", 45: "forty-five"}), []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			project := t.TempDir()
			put(t, before, project, "file.py")
			for _, args := range [][]string{{"init", "-q"}, {"add", "file.py"}} {
				cmd := exec.Command("git", args...)
				cmd.Dir = project
				must.Do(t, cmd.Run())
			}
			put(t, test.now, project, "file.py")
			entry := patched(t, project, changes.Summary{}, map[string]change{"file.py": {text(before), text(after)}, "other.py": added("x\n")})
			applied := must.Get(changes.ApplyPicked(t.Context(), entry, map[string][]int{"file.py": test.wanted}))(t)
			if got := string(must.Get(os.ReadFile(filepath.Join(project, "file.py")))(t)); got != test.want {
				t.Errorf("%+v\n%s", applied, cmp.Diff(test.want, got))
			}
			if left := map[bool]int{true: 1, false: 2}[test.wanted == nil]; applied.Left != left {
				t.Errorf("%d files are left, want %d", applied.Left, left)
			}
			if test.now != before {
				return
			}
			// The rest later, also where git does not help.
			must.Do(t, os.RemoveAll(filepath.Join(project, ".git")))
			must.Get(changes.Apply(t.Context(), entry, []string{"file.py"}))(t)
			if got := string(must.Get(os.ReadFile(filepath.Join(project, "file.py")))(t)); got != after {
				t.Errorf("with the rest: %s", cmp.Diff(after, got))
			}
			if _, err := changes.ApplyPicked(t.Context(), entry, map[string][]int{"file.py": {3}}); !errors.As(err, new(*changes.ConflictError)) {
				t.Errorf("a hunk that is none: %v", err)
			}
		})
	}
}

// A file keeps its owner, its permissions and its access control list.
func TestApply_KeepsWhoMayReadAFile(t *testing.T) {
	project := t.TempDir()
	put(t, "1\n2\n3\n", project, "fix.py")
	name := filepath.Join(project, "fix.py")
	owner := os.Getuid()
	if owner == 0 {
		owner = 65500
		must.Do(t, os.Chown(project, owner, owner))
		must.Do(t, os.Chown(name, owner, owner))
	}
	// user::rw-, user:65501:rw-, group::---, mask::rw-, other::--- (acl(5), linux/posix_acl_xattr.h)
	acl := []byte("\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x06\x00\xdd\xff\x00\x00" +
		"\x04\x00\x00\x00\xff\xff\xff\xff" + "\x10\x00\x06\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff")
	hasACL := unix.Setxattr(name, "system.posix_acl_access", acl, 0) == nil
	must.Get(changes.Apply(t.Context(), patched(t, project, changes.Summary{}, map[string]change{"fix.py": fix, "new/a.py": added("x\n")}), nil))(t)
	got := make([]byte, 100)
	if n, err := unix.Getxattr(name, "system.posix_acl_access", got); hasACL && (err != nil || !bytes.Equal(got[:n], acl)) {
		t.Errorf("its list is %x, %v", got[:max(n, 0)], err)
	}
	for _, name := range []string{"fix.py", "new", "new/a.py"} {
		info := must.Get(os.Stat(filepath.Join(project, name)))(t)
		if int(info.Sys().(*syscall.Stat_t).Uid) != owner {
			t.Errorf("%s belongs to %d, want %d", name, info.Sys().(*syscall.Stat_t).Uid, owner)
		}
	}
	t.Logf("access control lists: %v", hasACL)
}

// FuzzApply applies files of any name and content: what passes is a regular file at its own
// path, and everything else in the project stays as it is.
func FuzzApply(f *testing.F) {
	f.Add("a/b.py", []byte("x\n"), uint8(1))
	f.Add(".envrc", []byte("x\n"), uint8(1))
	f.Add("fix.py/../x", []byte("\x00"), uint8(2))
	modes := []gitpatch.Mode{gitpatch.Regular, gitpatch.Executable, gitpatch.Link}
	f.Fuzz(func(t *testing.T, name string, content []byte, mode uint8) {
		if name == "" || name != path.Clean(name) || path.IsAbs(name) || strings.HasPrefix(name+"/", "../") || strings.ContainsRune(name, 0) ||
			name == "." || strings.HasPrefix(name+"/", "fix.py/") || strings.Contains(strings.ToLower(name), ".git") || len(name) > 200 {
			return
		}
		project := t.TempDir()
		put(t, "unharmed", project, "fix.py")
		state := gitpatch.State{Mode: modes[mode%3], Content: content}
		applied, err := changes.Apply(t.Context(), patched(t, project, changes.Summary{}, map[string]change{name: {after: state}}), nil)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"fix.py": "file false unharmed"}
		if len(applied.Refused) == 0 {
			want[name] = "file false " + string(content)
		}
		if diff := cmp.Diff(want, files(t, project)); diff != "" {
			t.Errorf("%q: %s", name, diff)
		}
	})
}

// Code that may read the project can lock it, which stops no apply. Two applies at once do
// not meet.
func TestApply_IsStoppedByNoLockInTheProject(t *testing.T) {
	project := t.TempDir()
	entry := patched(t, project, changes.Summary{}, map[string]change{"a.py": added("x\n")})
	folder := must.Get(os.Open(project))(t)
	defer folder.Close()
	must.Do(t, unix.Flock(int(folder.Fd()), unix.LOCK_EX))
	unlock := must.Get(entry.Lock())(t)
	if _, err := changes.Apply(t.Context(), entry, nil); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("beside another apply: %v", err)
	}
	unlock()
	must.Get(changes.Apply(t.Context(), entry, nil))(t)
}

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// saved are the contents of the files in which a server has saved changes.
func saved(t *testing.T, state string) (contents []string) {
	t.Helper()
	names := must.Get(filepath.Glob(filepath.Join(state, "nix-sandbox-mcp", "changes", "*.patch")))(t)
	for _, name := range names {
		info := must.Get(os.Stat(name))(t)
		if info.Mode() != 0o600 {
			t.Errorf("%s has the mode %v", name, info.Mode())
		}
		contents = append(contents, string(must.Get(os.ReadFile(name))(t)))
	}
	return contents
}

// patch reads the resource with the changes of a session.
func patch(t *testing.T, c *mcptest.Client, session string) string {
	t.Helper()
	var read struct {
		Contents []struct{ Text, MIMEType string }
	}
	must.Do(t, json.Unmarshal(c.Request("resources/read", map[string]any{"uri": "sandbox://" + session + "/changes.patch"}).Result, &read))
	if len(read.Contents) != 1 || read.Contents[0].MIMEType != "text/x-diff" {
		t.Fatalf("the resource has %+v", read)
	}
	return read.Contents[0].Text
}

// links are the resource links of an answer.
func links(answer mcptest.Answer) (uris []string) {
	for _, content := range answer.Content {
		if content.Type == "resource_link" {
			uris = append(uris, content.URI)
		}
	}
	return uris
}

// What a session changes in an overlay is a resource, linked once, and a file that is
// there when the server is killed.
func TestChanges_AreAResourceAndAFile(t *testing.T) {
	project, state := sample(t, "a project"), t.TempDir()
	before := tree(t, project)
	c := start(t, "PROJECT_DIR="+project, "PROJECT_MODE=overlay", "XDG_STATE_HOME="+state)
	if answer := in(c, "work", "bash", "ls /project > list"); len(links(answer)) > 0 || answer.Meta["nix-sandbox-mcp/changes"] != nil {
		t.Errorf("nothing is changed, and the answer is %+v", answer)
	}
	answer := in(c, "work", "bash", "cd /project; sed -i s/upper/lower/ words.py; rm build/old.txt; echo new > 'new file'; mkdir .git; echo > .git/config")
	if diff := cmp.Diff([]string{"sandbox://work/changes.patch"}, links(answer)); diff != "" {
		t.Errorf("links: %s", diff)
	}
	facts, _ := answer.Meta["nix-sandbox-mcp/changes"].(map[string]any)
	for name, want := range map[string]any{"added": 1.0, "changed": 1.0, "deleted": 1.0, "uri": "sandbox://work/changes.patch", "left_out_count": 1.0} {
		if facts[name] != want {
			t.Errorf("%s is %v, want %v", name, facts[name], want)
		}
	}
	if answer := in(c, "work", "bash", "echo more >> '/project/new file'"); len(links(answer)) > 0 {
		t.Errorf("linked again: %+v", answer)
	}
	got := patch(t, c, "work")
	for _, want := range []string{"-    return text.upper() + \"!\"\n+    return text.lower() + \"!\"\n", "deleted file mode 100644", "+new\n+more\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the patch lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, ".git/") {
		t.Errorf("the patch has git's own:\n%s", got)
	}
	// Another session has another layer, and a call without a session none that is saved.
	expect(t, in(c, "other", "bash", "ls /project"), "Makefile\nbuild\nflake.nix\ntest_words.py\nwords.py\n")
	run(c, "bash", "echo > /project/once")
	c.Signal(9)
	c.Wait(patience.Long)
	files := saved(t, state)
	if len(files) != 1 || !strings.HasSuffix(files[0], "\n\n"+got) {
		t.Errorf("%d files are saved: %q", len(files), files)
	}
	if diff := cmp.Diff(before, tree(t, project)); diff != "" {
		t.Errorf("the host's files changed:\n%s", diff)
	}
	if _, err := exec.LookPath("git"); err == nil {
		cmd := exec.Command("git", "apply", "-")
		cmd.Dir, cmd.Stdin = project, strings.NewReader(files[0])
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(project))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if text := must.Get(os.ReadFile(filepath.Join(project, "new file")))(t); string(text) != "new\nmore\n" {
			t.Errorf("applied, the new file has %q", text)
		}
	}
}

// Without an overlay nothing is written, and no folder is made.
func TestChanges_WithoutAnOverlay(t *testing.T) {
	for name, variables := range map[string][]string{
		"read-only":  {"PROJECT_DIR=" + sample(t, "project")},
		"no project": {"PROJECT_MODE=overlay"},
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			c := start(t, append(variables, "XDG_STATE_HOME="+state, "XDG_RUNTIME_DIR="+t.TempDir(), "SESSION_KEEP_FILES=0")...)
			in(c, "work", "bash", "echo > changes.patch; echo > /project/x")
			c.CloseInput()
			c.Wait(10 * time.Second)
			must.Do(t, filepath.WalkDir(state, func(path string, _ fs.DirEntry, err error) error {
				if path != state {
					t.Errorf("%s was made", path)
				}
				return err
			}))
		})
	}
}

// changesCommand runs the command changes, and returns its outputs and exit status.
func changesCommand(t *testing.T, state string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := command(t, "XDG_STATE_HOME="+state, "PATH="+os.Getenv("PATH"))
	cmd.Args = append(cmd.Args[:1], append([]string{"changes"}, args...)...)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, &out, &errs
	_ = cmd.Run()
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// ownTests runs the tests of the sample project without pytest, which the host may lack.
const ownTests = "import test_words; test_words.test_shout(); test_words.test_build_output(); print('passed')"

// A project whose tests fail is edited by code until they pass in the session; applied,
// they pass on the host too.
func TestChanges_MakeTheTestsPassOnTheHost(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("the host has no python3 for the project's tests")
	}
	project, state := sample(t, "a project"), t.TempDir()
	words := filepath.Join(project, "words.py")
	must.Do(t, os.WriteFile(words, []byte("def shout(text):\n    return text\n"), 0o644))
	onHost := func() string {
		cmd := exec.Command(python, "-B", "-c", ownTests)
		cmd.Dir, cmd.Env = project, append(os.Environ(), "GREETING=hello from the shell")
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if out := onHost(); !strings.Contains(out, "AssertionError") {
		t.Fatalf("the control: the tests pass as they are: %s", out)
	}
	c := start(t, "PROJECT_DIR="+project, "PROJECT_MODE=overlay", "XDG_STATE_HOME="+state)
	inSession := "import os, sys; os.environ['GREETING'] = 'hello from the shell'; sys.dont_write_bytecode = True\nos.chdir('/project'); sys.path.insert(0, '/project')\n"
	for _, body := range []string{"return text", "return text.upper()", "return text.upper() + '!'"} {
		answer := in(c, "fix", "python", inSession+"open('words.py', 'w').write('def shout(text):\\n    "+strings.ReplaceAll(body, "'", `"`)+"\\n')\nimport importlib, words; importlib.reload(words)\n"+strings.ReplaceAll(ownTests, "; ", "\n"))
		if passed := strings.Contains(answer.Text(), "passed"); passed != strings.Contains(body, "!") {
			t.Fatalf("%s: %+v", body, answer)
		}
	}
	c.CloseInput()
	c.Wait(patience.Long)
	if out, _, status := changesCommand(t, state); status != 0 || !strings.Contains(out, "fix") || !strings.Contains(out, "+") || !strings.Contains(out, project) {
		t.Errorf("the list, status %d: %s", status, out)
	}
	out, errs, status := changesCommand(t, state, "fix", "--apply")
	if status != 0 || !strings.Contains(out, "2 written, 0 deleted") {
		t.Fatalf("applied with status %d: %s%s", status, out, errs)
	}
	if out := onHost(); out != "passed\n" {
		t.Errorf("on the host: %s", out)
	}
	if out, errs, status = changesCommand(t, state, "fix", "--apply"); status != 0 || !strings.Contains(out, "0 written, 0 deleted, 2 already so") {
		t.Errorf("applied again with status %d: %s%s", status, out, errs)
	}
}

// What needs a name of its own is refused, and so is what conflicts with the project's own changes. The rest
// is applied.
func TestChanges_ApplyRefuses(t *testing.T) {
	project, state := sample(t, "a project"), t.TempDir()
	c := start(t, "PROJECT_DIR="+project, "PROJECT_MODE=overlay", "XDG_STATE_HOME="+state)
	expect(t, in(c, "s", "bash", `cd /project && mkdir -p .github/workflows sub/.claude && echo > .github/workflows/ci.yml && echo > sub/.claude/settings.json &&
		echo > .envrc && echo >> flake.nix && ln -s ../../outside leaves && ln -s words.py stays && echo plain > plain && echo '# seen' >> words.py &&
		echo > new.py && printf 'a\0' > data.csv && echo > run.sh && chmod +x run.sh; echo done`), "done\n[changes to the project: the user takes them with: nix-sandbox-mcp changes s --apply]")
	c.CloseInput()
	c.Wait(patience.Long)
	if _, errs, status := changesCommand(t, state, "s", "--apply", "nothing"); status != 1 || !strings.Contains(errs, "the session did not change nothing") {
		t.Errorf("a path that was not changed: status %d:\n%s", status, errs)
	}
	words := filepath.Join(project, "words.py")
	original := must.Get(os.ReadFile(words))(t)
	must.Do(t, os.WriteFile(words, []byte("changed on the host\n"), 0o644))
	before := tree(t, project)
	// Here it is alone, or beside what is refused.
	for _, args := range [][]string{{"words.py"}, {"words.py", "sub"}} {
		if _, errs, status := changesCommand(t, state, append([]string{"s", "--apply"}, args...)...); status != 1 || !strings.Contains(errs, "conflict: words.py: it has changed in the project") {
			t.Errorf("a file that changed: status %d:\n%s", status, errs)
		}
	}
	if diff := cmp.Diff(before, tree(t, project)); diff != "" {
		t.Errorf("the project changed:\n%s", diff)
	}
	for _, args := range [][]string{nil, {"."}} {
		out, errs, status := changesCommand(t, state, append([]string{"s", "--apply"}, args...)...)
		if status != 1 || !strings.Contains(errs, "conflict: words.py: it has changed in the project") || !strings.Contains(out, "applied to ") {
			t.Errorf("a file that changed, beside others: status %d:\n%s%s", status, out, errs)
		}
	}
	if got := must.Get(os.ReadFile(words))(t); string(got) != "changed on the host\n" {
		t.Errorf("words.py became %q", got)
	}
	must.Do(t, os.Remove(filepath.Join(project, "new.py")))
	must.Do(t, os.WriteFile(words, original, 0o644))
	refused := []string{".github/workflows/ci.yml", "sub/.claude/settings.json", ".envrc", "flake.nix", "leaves", "stays", "plain", "data.csv", "run.sh"}
	out, errs, status := changesCommand(t, state, "s", "--apply")
	if status != 0 || !strings.Contains(out, fmt.Sprintf("2 written, 0 deleted, %d refused", len(refused))) {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	for _, name := range refused {
		if !strings.Contains(errs, "refused: "+name+": ") {
			t.Errorf("%s is not listed:\n%s", name, errs)
		}
		if _, err := os.Lstat(filepath.Join(project, name)); err == nil && name != "flake.nix" {
			t.Errorf("%s was applied", name)
		}
	}
	// The control: what is named is applied, and nothing else. A folder is no name for what is
	// refused in it.
	if _, errs, status := changesCommand(t, state, "s", "--apply", ".github"); status != 1 || !strings.Contains(errs, "nothing was applied") {
		t.Errorf("a folder: status %d: %s", status, errs)
	}
	out, errs, status = changesCommand(t, state, "s", "--apply", ".envrc", ".github/workflows/ci.yml", "plain", "stays")
	if status != 0 || !strings.Contains(out, "4 written") {
		t.Errorf("named: status %d: %s%s", status, out, errs)
	}
	for name, want := range map[string]bool{".envrc": true, ".github/workflows/ci.yml": true, "plain": true, "stays": true, "leaves": false, "sub": false} {
		if _, err := os.Lstat(filepath.Join(project, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	// All of it takes a look.
	if _, errs, status := changesCommand(t, state, "s", "--apply", "--all"); status != 1 || !strings.Contains(errs, "you have not seen this patch yet") {
		t.Errorf("all, not seen: status %d: %s", status, errs)
	}
	changesCommand(t, state, "s", "--stat")
	if out, errs, status := changesCommand(t, state, "s", "--apply", "--all"); status != 0 || strings.Contains(out+errs, "refused") {
		t.Errorf("all: status %d: %s%s", status, out, errs)
	}
	if out, _, _ := changesCommand(t, state); !strings.Contains(out, "all changes are applied") {
		t.Errorf("afterwards: %s", out)
	}
}

// What is applied is what the user saw, of the session that the user means.
func TestChanges_ApplyWhatWasShown(t *testing.T) {
	project, state := sample(t, "a project"), t.TempDir()
	variables := []string{"PROJECT_DIR=" + project, "PROJECT_MODE=overlay", "XDG_STATE_HOME=" + state}
	c := start(t, variables...)
	in(c, "s", "bash", "echo 1 > /project/new.py")
	in(c, "s", "bash", "true") // the patch of a call is there when the next one runs
	shown, _, status := changesCommand(t, state, "s", "--stat")
	_, id, found := strings.Cut(strings.TrimSpace(shown), "changes ")
	id, _, _ = strings.Cut(id, " ")
	if status != 0 || !found || !strings.Contains(id, "@") {
		t.Fatalf("status %d: %s", status, shown)
	}
	in(c, "s", "bash", "echo 2 > /project/new.py")
	in(c, "s", "bash", "true")
	for name, problem := range map[string]string{"s": "the session has changed more since you saw its patch", id: "is not the one with the digest"} {
		if _, errs, status := changesCommand(t, state, name, "--apply"); status != 1 || !strings.Contains(errs, problem) {
			t.Errorf("%s: status %d: %s", name, status, errs)
		}
	}
	// The control: when it has been seen again.
	changesCommand(t, state, "s")
	if out, errs, status := changesCommand(t, state, "s", "--apply"); status != 0 || !strings.Contains(out, "1 written") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	// What comes after an applied patch has to be seen too.
	in(c, "s", "bash", "echo 3 > /project/new.py")
	in(c, "s", "bash", "true")
	if _, errs, status := changesCommand(t, state, "s", "--apply"); status != 1 || !strings.Contains(errs, "the session has changed more since you saw its patch") {
		t.Errorf("after an applied patch: status %d: %s", status, errs)
	}
	c.CloseInput()
	c.Wait(patience.Long)
	other := sample(t, "another project")
	c = start(t, "PROJECT_DIR="+other, "PROJECT_MODE=overlay", "XDG_STATE_HOME="+state)
	in(c, "s", "bash", "echo 3 > /project/new.py")
	c.CloseInput()
	c.Wait(patience.Long)
	_, errs, status := changesCommand(t, state, "s", "--apply")
	if status != 1 || !strings.Contains(errs, `2 sessions are called "s"`) || !strings.Contains(errs, project) || !strings.Contains(errs, other) {
		t.Errorf("two of one name: status %d: %s", status, errs)
	}
}

// Where the project is a git repository, changes of both sides are merged, or refused
// where they meet.
func TestChanges_AreMerged(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git")
	}
	project, state := t.TempDir(), t.TempDir()
	file := filepath.Join(project, "numbers.txt")
	lines := "1\n2\n3\n4\n5\n6\n7\n8\n9\n"
	must.Do(t, os.WriteFile(file, []byte(lines), 0o644))
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=test", "-c", "user.email=test@example.org", "commit", "-qm", "first"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = project
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	c := start(t, "PROJECT_DIR="+project, "PROJECT_MODE=overlay", "XDG_STATE_HOME="+state)
	in(c, "s", "bash", "sed -i s/8/eight/ /project/numbers.txt; echo > /project/new.txt")
	c.CloseInput()
	c.Wait(patience.Long)
	conflict := strings.Replace(lines, "8", "VIII", 1)
	must.Do(t, os.WriteFile(file, []byte(conflict), 0o644))
	if _, errs, status := changesCommand(t, state, "s", "--apply"); status != 1 || !strings.Contains(errs, "numbers.txt: it has changed in the project since the session saw it, in the same lines") {
		t.Errorf("a conflict: status %d: %s", status, errs)
	}
	if _, err := os.Lstat(filepath.Join(project, "new.txt")); err != nil {
		t.Error("the conflict of one file stopped the others")
	}
	if got := must.Get(os.ReadFile(file))(t); string(got) != conflict {
		t.Errorf("a file with a conflict became %q", got)
	}
	must.Do(t, os.WriteFile(file, []byte(strings.Replace(lines, "2", "two", 1)), 0o644))
	if out, errs, status := changesCommand(t, state, "s", "--apply"); status != 0 || !strings.Contains(out, "merged: numbers.txt\n") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	want := strings.NewReplacer("2", "two", "8", "eight").Replace(lines)
	if got := must.Get(os.ReadFile(file))(t); string(got) != want {
		t.Errorf("merged: %q, want %q", got, want)
	}
}

// However a server is killed while calls change files, the patch that is there is the whole
// of one call: of the last one that was answered, or the one before, or of one whose answer
// was on its way.
func TestChanges_SurviveKillsAtRandom(t *testing.T) {
	random := seed.New(t)
	project := sample(t, "a project")
	answered, found := 0, 0
	for round := range soak(t, 5) {
		state := t.TempDir()
		c := start(t, "PROJECT_DIR="+project, "PROJECT_MODE=overlay", "XDG_STATE_HOME="+state)
		last, sent := 0, 0
		delay := time.Duration(random.Int64N(int64(700 * time.Millisecond)))
		kill := time.AfterFunc(delay, func() { c.Signal(syscall.SIGKILL) })
		if round > 0 {
			kill.Stop() // until a first call has been answered, which takes long on a slow machine
		}
		for {
			sent++
			code := fmt.Sprintf("cd /project; for i in $(seq 20); do echo %d > new$i; done; echo %d > words.py; rm -rf build; mkdir build; echo %d > build/old.txt", sent, sent, sent)
			message, err := c.Client.Await(context.Background(), c.SendRun(mcptest.Arguments{Code: code, Env: "bash", Session: "s"}))
			if err != nil {
				break
			}
			if answer := must.Get(message.Answer())(t); answer.IsError {
				t.Fatalf("answer %q", answer.Text())
			}
			last = sent
			if answered++; round > 0 && last == 1 {
				kill.Reset(delay)
			}
		}
		kill.Stop()
		c.Wait(patience.For(10 * time.Second))
		entries, broken := changes.List(filepath.Join(state, "nix-sandbox-mcp", "changes"))
		if len(broken) > 0 || len(entries) > 1 || last > 1 && len(entries) == 0 {
			t.Fatalf("%d calls were answered, and there are %d patches, errors %v", last, len(entries), broken)
		}
		for _, entry := range entries {
			found++
			files, of := 0, 0
			must.Do(t, gitpatch.Read(entry.Patch(), func(file gitpatch.File) error {
				before, err := os.ReadFile(filepath.Join(project, file.Name))
				if err != nil && file.Before != gitpatch.Absent {
					return err
				}
				content := must.Get(file.Apply(before))(t)
				n := must.Get(strconv.Atoi(strings.TrimSpace(string(content))))(t)
				if files++; files == 1 {
					of = n
				}
				if n != of {
					t.Errorf("%s is of call %d, others of call %d", file.Name, n, of)
				}
				return nil
			}))
			entry.Close()
			if files != 22 || of < last-1 || of > sent {
				t.Errorf("%d files of call %d, where %d was answered last and %d sent", files, of, last, sent)
			}
		}
	}
	t.Logf("%d calls were answered, and %d patches found", answered, found)
	if answered == 0 || found == 0 {
		t.Error("no call was answered and saved before its server was killed")
	}
}

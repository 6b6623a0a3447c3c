package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// sample is a copy of testdata/project in a folder of the test of that name,
// which has something in it that builds replace.
func sample(t *testing.T, name string) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), name)
	must.Do(t, os.CopyFS(folder, os.DirFS(filepath.Join("testdata", "project"))))
	must.Do(t, os.Mkdir(filepath.Join(folder, "build"), 0o755))
	must.Do(t, os.WriteFile(filepath.Join(folder, "build", "old.txt"), []byte("old\n"), 0o644))
	return folder
}

// tree is all that a folder holds: the mode, owner, time and contents of each
// file, by its path.
func tree(t *testing.T, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		var contents []byte
		if info.Mode().IsRegular() {
			if contents, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		owner := info.Sys().(*syscall.Stat_t)
		all[path] = fmt.Sprintf("%v %d:%d %v %x", info.Mode(), owner.Uid, owner.Gid, info.ModTime(), sha256.Sum256(contents))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// servedProject starts the server with the environment of a project's own
// shell, and gives every sandbox the variable SAMPLE_TOKEN.
func servedProject(t *testing.T, variables ...string) *mcptest.Client {
	t.Helper()
	artifact := undertest.Artifact(t, "project") // project.nix
	folder := t.TempDir()
	must.Do(t, os.Symlink(artifact, filepath.Join(folder, "project")))
	metadata := mcptest.MetadataWith(t, environments(t), map[string]any{
		"project": mcptest.Project(map[string]any{"inherit_env": map[string]any{"vars": []string{"SAMPLE_TOKEN"}}}),
	})
	return start(t, append([]string{"NIX_SANDBOX_DIR=" + folder, "NIX_SANDBOX_METADATA=" + metadata}, variables...)...)
}

// A project's tests run in its own shell, write beside their sources, and
// leave the host's files as they were.
func TestProjectsOwnTests(t *testing.T) {
	folder := sample(t, "a project")
	before := tree(t, folder)
	c := servedProject(t, "PROJECT_DIR="+folder, "PROJECT_MODE=overlay")

	answer := run(c, "project", "cd /project && python3 -m pytest -q && cat build/output.txt && ls -d __pycache__ .pytest_cache && echo && echo $GREETING")
	want := "2 passed"
	if got := answer.Text(); answer.IsError || !strings.Contains(got, want) || !strings.HasSuffix(got, "BUILT!.pytest_cache\n__pycache__\n\nhello from the shell\n") {
		t.Errorf("answer %+v", answer)
	}
	// The next call does not find the files that a call wrote.
	expect(t, run(c, "project", "ls -A /project/build"), "old.txt\n")
	// What the project has can be replaced, and a session keeps it.
	expect(t, in(c, "work", "project", "make -s -C /project && rm /project/words.py && echo made"), "made\n[changes to the project: the user takes them with: nix-sandbox-mcp changes work --apply]")
	expect(t, in(c, "work", "project", "cat /project/build/old.txt; ls /project"), "new\nMakefile\nbuild\nflake.nix\ntest_words.py\n")
	expect(t, in(c, "other", "project", "cat /project/build/old.txt"), "old\n")
	// Every other environment has the same layer.
	expect(t, run(c, "python", "open('/project/x', 'w').write('x'); import os; print(sorted(os.listdir('/project/build')), os.path.exists('/project/x'))"), "['old.txt'] True\n")
	c.CloseInput()
	c.Wait(10 * time.Second)
	if diff := cmp.Diff(before, tree(t, folder)); diff != "" {
		t.Errorf("the host's files changed:\n%s", diff)
	}
}

// The shell of the folder that is served is built when the server starts, by
// Nix, from what git knows of the project: what lies beside it stays out of
// the store.
func TestProjectsShellIsBuiltAtStart(t *testing.T) {
	packages := undertest.Packages(t)
	for _, program := range []string{"nix", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s on the PATH", program)
		}
	}
	began := time.Now().Add(-2 * time.Second)
	// Nix before 2.20 finds no checkout whose path has a space in it.
	folder := sample(t, "project")
	flake := filepath.Join(folder, "flake.nix")
	text := must.Get(os.ReadFile(flake))(t)
	must.Do(t, os.WriteFile(flake, bytes.Replace(text, []byte("github:NixOS/nixpkgs/nixos-unstable"), []byte("path:"+packages), 1), 0o644))
	for _, words := range [][]string{
		{"git", "init", "-q"},
		{"git", "add", "."},
		{"nix", "--extra-experimental-features", "nix-command flakes", "flake", "lock"},
		{"git", "add", "."},
	} {
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	secret := "secret-" + rand.Text()
	must.Do(t, os.WriteFile(filepath.Join(folder, ".env"), []byte("TOKEN="+secret+"\n"), 0o600))
	before := tree(t, folder)
	c := start(t, "PROJECT_DIR="+folder, "PROJECT_MODE=overlay", "PROJECT_USE_FLAKE=1", "PATH="+os.Getenv("PATH"), "NIX_CONFIG="+os.Getenv("NIX_CONFIG"))
	patience.Wait(t, building, c.Log, func() bool {
		if strings.Contains(c.Log(), "environment not built") {
			t.Fatal(c.Log())
		}
		return slices.Contains(listed(c), "project")
	})
	answer := run(c, "project", "cd /project && python3 -m pytest -q && cat .env")
	if got := answer.Text(); answer.IsError || !strings.Contains(got, "2 passed") || !strings.Contains(got, secret) {
		t.Errorf("answer %+v", answer)
	}
	if diff := cmp.Diff(before, tree(t, folder)); diff != "" {
		t.Errorf("the host's files changed:\n%s", diff)
	}
	searchStore(t, began, secret)
}

// Without the mode the same tests cannot write, and say so: what the overlay
// is for.
func TestProjectIsReadOnlyByDefault(t *testing.T) {
	folder := sample(t, "a project")
	before := tree(t, folder)
	c := servedProject(t, "PROJECT_DIR="+folder)
	answer := run(c, "project", "cd /project && python3 -m pytest -q -p no:cacheprovider")
	if got := answer.Text(); !answer.IsError || !strings.Contains(got, "Read-only file system") || !strings.Contains(got, "1 failed, 1 passed") {
		t.Errorf("answer %+v", answer)
	}
	if diff := cmp.Diff(before, tree(t, folder)); diff != "" {
		t.Errorf("the host's files changed:\n%s", diff)
	}
}

// A shell's variables are those that its makers export, not those of the
// build that found them: the same wherever it ran.
func TestShell_VariablesReachCode(t *testing.T) {
	c := servedProject(t)
	variables := map[string]string{}
	for entry := range strings.SplitSeq(run(c, "project", "env -0 | tr '\\n\\0' ' \\n'").Text(), "\n") {
		name, value, _ := strings.Cut(entry, "=")
		variables[name] = value
	}
	if variables["GREETING"] != "hello from the shell" || variables["HOME"] != "/workspace" {
		t.Errorf("variables %q", variables)
	}
	for _, name := range []string{
		"NIX_BUILD_TOP", "NIX_BUILD_CORES", "NIX_LOG_FD", "NIX_STORE", "TMP", "TEMP", "SHELLOPTS", "builder", "out", "stdenv",
		"buildInputs", "nativeBuildInputs", "shellHook", "sandboxExcept", "SSL_CERT_FILE",
	} {
		if value, there := variables[name]; there {
			t.Errorf("the build's own %s=%s is in the sandbox", name, value)
		}
	}
	for name, value := range variables {
		if strings.Contains(value, "/build") || strings.Contains(value, "/homeless-shelter") {
			t.Errorf("%s=%s tells of the build", name, value)
		}
	}
	// What they name is there.
	expect(t, run(c, "project", `IFS=:; for folder in $PATH; do [ -d "$folder" ] || echo "no $folder"; done; echo seen`), "seen\n")
}

// The layer is memory, and bounded like it.
func TestOverlay_IsBounded(t *testing.T) {
	c := servedProject(t, "PROJECT_DIR="+sample(t, "a project"), "PROJECT_MODE=overlay")
	answer := run(c, "project", "head -c 400M /dev/zero > /project/big; stat -c %s /project/big")
	if got := answer.Text(); !strings.Contains(got, "No space left on device") || strings.Contains(got, "419430400") {
		t.Errorf("400 MB in a layer of 256: %+v", answer)
	}
	answer = run(c, "project", "head -c 200M /dev/zero > /project/big; head -c 200M /dev/zero > /tmp/big; head -c 200M /dev/zero > big; sleep 5; echo all of it")
	if got := answer.Text(); !answer.IsError || strings.Contains(got, "all of it") {
		t.Errorf("600 MB in a sandbox of 512: %+v", answer)
	}
}

// A variable that is inherited reaches the code in a frame: it is in no store
// path, on no command line, and in the environment of no process but the
// server, whose operator set it, and the code.
func TestInheritedSecret(t *testing.T) {
	// Of the store, what is new since then; ctime is of the disk's clock.
	began := time.Now().Add(-2 * time.Second)
	secret := "secret-" + rand.Text()
	c := servedProject(t, "PROJECT_DIR="+sample(t, "a project"), "PROJECT_MODE=overlay", "SAMPLE_TOKEN="+secret)
	expect(t, in(c, "work", "project", "echo $SAMPLE_TOKEN"), secret+"\n")
	holders := 0
	for _, pid := range append(procfs.Descendants(c.PID()), c.PID()) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(line, []byte(secret)) {
			t.Errorf("the secret is on the command line of %s", name)
		}
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if !bytes.Contains(environ, []byte(secret)) {
			continue
		}
		holders++
		if got := strings.TrimSpace(string(name)); pid != c.PID() && got != "bash" {
			t.Errorf("the secret is in the environment of %s", got)
		}
	}
	// The control: those who have it are seen to.
	if holders < 2 {
		t.Errorf("%d processes have the secret, want the server and the session's bash", holders)
	}
	if marked := procfs.WithCommand(secret); len(marked) > 0 {
		t.Errorf("the secret is on the command lines of %v", marked)
	}
	searchStore(t, began, secret)
}

// searchStore searches what has come into the store since then for a secret,
// and in the sandboxes themselves.
func searchStore(t *testing.T, since time.Time, secret string) {
	t.Helper()
	entries := must.Get(os.ReadDir("/nix/store"))(t)
	places := append(undertest.Artifacts(t), filepath.Dir(filepath.Dir(undertest.Server(t))))
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix()).After(since) {
			places = append(places, filepath.Join("/nix/store", entry.Name()))
		}
	}
	seen := 0
	for _, place := range places {
		_ = filepath.WalkDir(place+"/.", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return nil // another build's, gone meanwhile
			}
			// No larger one holds variables.
			if info, err := entry.Info(); err != nil || info.Size() > 16<<20 {
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return nil
			}
			seen++
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("the secret is in %s", path)
			}
			return nil
		})
	}
	if seen < 4 {
		t.Errorf("%d files were searched, the sandbox and the server alone have more", seen)
	}
}

// An inbox is a folder of the host that code reads beside the project, and what is
// put into it later is there in sessions too.
func TestInbox_IsReadAndNotWritten(t *testing.T) {
	inbox := filepath.Join(t.TempDir(), "files for the code")
	must.Do(t, os.Mkdir(inbox, 0o700))
	must.Do(t, os.WriteFile(filepath.Join(inbox, "sales.csv"), []byte("month,revenue\n"), 0o600))
	for name, variables := range map[string][]string{
		"alone":                {},
		"beside a project":     {"PROJECT_DIR=" + sample(t, "project")},
		"beside an overlay":    {"PROJECT_DIR=" + sample(t, "project"), "PROJECT_MODE=overlay"},
		"which is the project": {"PROJECT_DIR=" + inbox},
	} {
		t.Run(name, func(t *testing.T) {
			before := tree(t, inbox)
			c := start(t, append(variables, "NIX_SANDBOX_INBOX="+inbox)...)
			expect(t, run(c, "bash", "cat /inbox/sales.csv"), "month,revenue\n")
			if len(variables) > 0 {
				expect(t, run(c, "python", "import os; print(len(os.listdir('/project')) > 0)"), "True\n")
			}
			expectError(t, run(c, "bash", "echo x >/inbox/sales.csv"), "Read-only file system")
			expectError(t, run(c, "bash", "rm /inbox/sales.csv"), "[hint: write to /workspace: this path is read-only]")
			expectError(t, run(c, "python", "open('sales.csv')"), "/inbox")
			in(c, "s", "bash", "ls /inbox")
			if diff := cmp.Diff(before, tree(t, inbox)); diff != "" {
				t.Errorf("the host's files changed:\n%s", diff)
			}
			later := filepath.Join(inbox, "later")
			must.Do(t, os.WriteFile(later, []byte("later\n"), 0o600))
			expect(t, in(c, "s", "bash", "cat /inbox/later"), "later\n")
			must.Do(t, os.Remove(later))
		})
	}
	// Without one there is nothing at its path, and the model reads nothing of it.
	c := start(t)
	expectError(t, run(c, "bash", "ls /inbox"), "No such file or directory")
}
